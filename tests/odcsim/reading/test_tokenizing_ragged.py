"""Rows whose keys differ have as many tokens as each by itself, in any order and in any file, or are refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from texts import UNMARKED, WORDS, tokenizer_in

from odcsim.errors import InputError
from odcsim.reading import load

TOOLED = (
    "{% if tools is not none %}{{ tools | tojson }}{% endif %}{% if fancy %}{{ fancy }}{% endif %}"
    "{% for m in messages %}{% if m.tool_calls is defined %}calls{% endif %}{% endfor %}"
) + UNMARKED
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"x": "a number"}}}
CALLED = {"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}
SAID = st.sampled_from([word for word in WORDS if word])
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": SAID | st.none()},
    optional={"tool_calls": st.sampled_from([None, [{"id": "1"}]])},
)
BESIDE = {
    "tools": st.sampled_from([None, [], [TOOL], json.dumps([TOOL]), ""]),
    "system": SAID | st.none() | st.just(""),
    "chat_template_kwargs": st.sampled_from([None, {}, {"fancy": "very"}]),
}
HISTORY = st.none() | st.lists(st.tuples(SAID, SAID).map(list), max_size=2)
TALK = st.lists(TURN, min_size=1, max_size=3)
FORMS = {
    "conversations": st.fixed_dictionaries({"messages": TALK}, optional=BESIDE),
    "shared": st.fixed_dictionaries(
        {"conversations": st.lists(st.fixed_dictionaries({"from": st.just("human"), "value": SAID}), min_size=1)},
        optional=BESIDE,
    ),
    "alpaca": st.fixed_dictionaries(
        {"instruction": SAID, "output": SAID},
        optional={"input": SAID | st.none() | st.just(""), "history": HISTORY, **BESIDE},
    ),
    "dialogue": st.fixed_dictionaries({"prompt": TALK, "completion": TALK | SAID}, optional=BESIDE),
    "pair": st.fixed_dictionaries({"prompt": SAID, "completion": SAID}, optional={"tools": BESIDE["tools"]}),
    "text": st.fixed_dictionaries({"text": SAID | st.just("[]")}, optional={"system": SAID}),
}
MIXED = st.lists(
    st.one_of(*FORMS.values()) | st.just({"text": None}) | st.just({"messages": []}), min_size=1, max_size=4
)
ROWS = st.one_of(*(st.lists(form, min_size=1, max_size=5) for form in FORMS.values()), MIXED)
FIXTURES = [HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"), TOOLED)


def lines(folder, rows):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def counts(path, folder, **asked):
    """Tokens of each row and of its loss; None where the file is refused."""
    try:
        trace = load(path, tokenizer=folder, **asked)
    except InputError:
        return None
    return trace.lengths.tolist(), None if trace.loss is None else trace.loss.tolist()


@settings(max_examples=40, suppress_health_check=FIXTURES)
@given(rows=ROWS, data=st.data())
def test_a_row_counts_what_it_counts_by_itself(tmp_path, folder, rows, data):
    alone = [counts(lines(tmp_path, [row]), folder) for row in rows]
    order = data.draw(st.permutations(range(len(rows))))
    ordered = counts(lines(tmp_path, [rows[i] for i in order]), folder)
    if ordered is not None:
        assert ordered[0] == [alone[i][0][0] for i in order]
        loss = [one[1] and one[1][0] for one in (alone[i] for i in order)]
        assert ordered[1] == (None if None in loss else loss)
    assert (ordered is None) == (counts(lines(tmp_path, rows), folder) is None)


@example(rows=[{"messages": [CALLED]}, {"messages": [{**CALLED, "content": None}], "system": "a"}])
@settings(max_examples=20, suppress_health_check=FIXTURES)
@given(rows=st.lists(FORMS["conversations"], min_size=1, max_size=4))
def test_a_table_counts_what_lines_do(tmp_path, folder, rows):
    """A table has every key in every row, and a null where a line has none."""
    rows = [{name: value for name, value in row.items() if value not in ([], {})} for row in rows]  # no types in those
    rows = [{**row, "tools": None if row.get("tools") is None else json.dumps(row["tools"])} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows, _schema(rows)), tmp_path / "a.parquet")
    assert counts(tmp_path / "a.parquet", folder) == counts(lines(tmp_path, rows), folder)


def _schema(rows):
    """Of all rows: pyarrow's own takes the first row's keys."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([(name, pa.infer_type([row.get(name) for row in rows])) for name in names])


def test_json_inside_a_table_is_what_it_says(tmp_path, folder):
    """datasets writes messages of unlike keys as lists of JSON."""
    rows = [[{"role": "user", "content": WORDS[0]}], [{"role": "user", "content": None, "tool_calls": [{"id": "1"}]}]]
    pq.write_table(_of_json([[json.dumps(m) for m in row] for row in rows]), tmp_path / "a.parquet")
    as_lines = counts(lines(tmp_path, [{"messages": row} for row in rows]), folder)
    assert counts(tmp_path / "a.parquet", folder) == as_lines is not None
    pq.write_table(_of_json([["{"]]), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "b.parquet", tokenizer=folder)


def _of_json(rows):
    texts = pa.array(rows, pa.list_(pa.string()))
    values = pa.ExtensionArray.from_storage(pa.json_(), texts.values)
    return pa.table({"messages": pa.ListArray.from_arrays(texts.offsets, values)})


BAD = {
    "another form": ([{"text": "a"}, {"prompt": "a", "completion": "b"}], "is prompt . completion in 'prompt', 'comp"),
    "another column": ([{"messages": [{"role": "user"}]}, {"conversations": [{"from": "gpt"}]}], "2: has no mes"),
    "a column before": (
        [{"conversations": [{"from": "gpt"}]}, {"messages": [{"role": "user"}]}],
        "is conversations in 'messages' where the first row is conversations in 'conversations'; keep one form",
    ),
    "texts and messages": (
        [{"prompt": "a", "completion": "b"}, {"prompt": [{"role": "user"}], "completion": "b"}],
        "as messages in 'prompt', 'completion' where the first row is prompt",
    ),
    "settings": (
        [{"messages": [{"role": "user"}], "chat_template_kwargs": {"chat_template": "x"}}],
        "sets chat_template in chat_template_kwargs; leave that out",
    ),
    "no settings": ([{"messages": [{"role": "user"}], "chat_template_kwargs": "5"}], "that are no object"),
    "a history": ([{"instruction": "a", "output": "b", "history": [["c"]]}], "has a history that is no list of pairs"),
    "no tools": (
        [{"messages": [{"role": "user"}]}, {"messages": [{"role": "user"}], "tools": "{"}],
        "a.jsonl:2: has t",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_together_is_one_line(tmp_path, folder, case):
    rows, message = BAD[case]
    with pytest.raises(InputError, match=message):
        load(lines(tmp_path, rows), tokenizer=folder)


def test_a_text_is_counted_beside_other_forms_where_its_column_is_named(tmp_path, folder):
    rows = [{"text": "a"}, {"text": "b", "prompt": "c", "completion": "d"}]
    assert counts(lines(tmp_path, rows), folder, column="text") == ([2, 2], None)


def test_what_was_said_before_an_instruction_counts(tmp_path, folder):
    row = {"instruction": "a", "output": "b"}
    talk = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, "cdab", strict=True)]
    expected = counts(lines(tmp_path, [{"messages": talk}]), folder)[0]
    assert counts(lines(tmp_path, [{**row, "history": [["c", "d"]]}]), folder)[0] == expected
    plain = tokenizer_in(tmp_path / "plain", None)
    assert counts(lines(tmp_path, [{**row, "history": [], "system": ""}]), plain)[0] == [4]
    for more in ({"history": [["c", "d"]]}, {"system": "c"}, {"tools": [TOOL]}):
        with pytest.raises(InputError, match=f"has {next(iter(more))}, which nothing but a chat template writes; name"):
            load(lines(tmp_path, [row, {**row, **more}]), tokenizer=plain)
