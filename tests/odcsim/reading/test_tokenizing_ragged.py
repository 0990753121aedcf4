"""Rows that differ: each counts as it does by itself, in any order and in any file, or is refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rowfiles import write
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
TALK = st.lists(TURN, min_size=1, max_size=3)
SHARED = st.lists(st.fixed_dictionaries({"from": st.just("human"), "value": SAID}), min_size=1)
OLDER = {
    "input": SAID | st.none() | st.just(""),
    "history": st.none() | st.lists(st.tuples(SAID, SAID).map(list), max_size=2),
}
FORMS = [
    conversations := st.fixed_dictionaries({"messages": TALK}, optional=BESIDE),
    st.fixed_dictionaries({"conversations": SHARED}, optional=BESIDE),
    st.fixed_dictionaries({"instruction": SAID, "output": SAID}, optional=OLDER | BESIDE),
    st.fixed_dictionaries({"prompt": TALK, "completion": TALK | SAID}, optional=BESIDE),
    st.fixed_dictionaries({"prompt": SAID, "completion": SAID}, optional={"tools": BESIDE["tools"]}),
    st.fixed_dictionaries({"text": SAID | st.just("[]")}, optional={"system": SAID}),
]
MIXED = st.lists(st.one_of(*FORMS, st.just({"text": None}), st.just({"messages": []})), min_size=1, max_size=4)
ROWS = st.one_of(*(st.lists(form, min_size=1, max_size=5) for form in FORMS), MIXED)
FIXTURES = [HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"), TOOLED)


def lines(folder, rows):
    return write(folder / "a.jsonl", rows)


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
@given(rows=st.lists(conversations, min_size=1, max_size=4))
def test_a_table_counts_what_lines_do(tmp_path, folder, rows):
    """A table has every key in every row, and a null where a line has none."""
    rows = [{name: value for name, value in row.items() if value not in ([], {})} for row in rows]  # no types in those
    rows = [{**row, "tools": None if row.get("tools") is None else json.dumps(row["tools"])} for row in rows]
    assert counts(write(tmp_path / "a.parquet", rows), folder) == counts(lines(tmp_path, rows), folder)


def test_json_inside_a_table_is_what_it_says(tmp_path, folder):
    """datasets writes messages of unlike keys as lists of JSON."""
    rows = [[{"role": "user", "content": WORDS[0]}], [{"role": "user", "content": None, "tool_calls": [{"id": "1"}]}]]
    found = []
    for said in ([[json.dumps(m) for m in row] for row in rows], [["{"]]):
        texts = pa.array(said, pa.list_(pa.string()))
        values = pa.ExtensionArray.from_storage(pa.json_(), texts.values)
        table = pa.table({"messages": pa.ListArray.from_arrays(texts.offsets, values)})
        pq.write_table(table, tmp_path / "a.parquet")
        found.append(counts(tmp_path / "a.parquet", folder))
    assert found == [counts(lines(tmp_path, [{"messages": row} for row in rows]), folder), None]
    assert found[0] is not None


ASKS = {"messages": [{"role": "user"}]}
BAD = {
    "another column": [ASKS, {"conversations": [{"from": "gpt"}]}],
    "a column before": [{"conversations": [{"from": "gpt"}]}, ASKS],
    "texts and messages": [{"prompt": "a", "completion": "b"}, {"prompt": [{"role": "user"}], "completion": "b"}],
    "no settings": [ASKS | {"chat_template_kwargs": "5"}],
    "no tools": [ASKS, ASKS | {"tools": "{"}],
}


def test_what_does_not_go_together_is_refused_unless_a_column_is_named(tmp_path, folder):
    assert [case for case in BAD if counts(lines(tmp_path, BAD[case]), folder) is not None] == []
    rows = [{"text": "a"}, {"text": "b", "prompt": "c", "completion": "d"}]
    assert counts(lines(tmp_path, rows), folder, column="text") == ([2, 2], None)


def test_what_was_said_before_an_instruction_counts(tmp_path, folder):
    """But nothing that only a chat template writes, where there is none."""
    row = {"instruction": "a", "output": "b"}
    talk = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, "cdab", strict=True)]
    expected = counts(lines(tmp_path, [{"messages": talk}]), folder)[0]
    assert counts(lines(tmp_path, [{**row, "history": [["c", "d"]]}]), folder)[0] == expected
    plain = tokenizer_in(tmp_path / "plain", None)
    assert counts(lines(tmp_path, [{**row, "history": [], "system": ""}]), plain)[0] == [4]
    for more in ({"history": [["c", "d"]]}, {"system": "c"}, {"tools": [TOOL]}):
        assert counts(lines(tmp_path, [row, {**row, **more}]), plain) is None
