"""Rows that are no sample: all of them are counted and named at once, or left out, and the rest is as without them."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rowfiles import ARROWS, FILES, write
from texts import UNMARKED, tokenizer_in

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import faults, load

VALUES = st.lists(st.sampled_from([None, math.nan, -5, 0, 2.5, 2**31, 5, 70, 900]), min_size=2, max_size=20)
TALK = [{"role": "user", "content": "Who waits?"}, {"role": "assistant", "content": "Whoever is done."}]
CHATS = [{"messages": []}, {"messages": TALK}, {"messages": None}, {"messages": TALK[:1]}]
FIXTURES = [HealthCheck.function_scoped_fixture]
COLUMNS = {
    "length": lambda value: {"length": value},
    "both": lambda value: {"prompt_tokens": value, "completion_tokens": None if value is None else 1},
    "rl": lambda value: {"length": value, "prompt_id": 7, "step": 3},
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    refuses = "{% if messages|length < 2 %}{{ raise_exception('two turns') }}{% endif %}"
    return tokenizer_in(tmp_path_factory.mktemp("strict"), refuses + UNMARKED)


def refused(path, wrong, rows, **asked):
    """Names as many as it may, counts the rest, and says what leaves them out."""
    with pytest.raises(InputError) as caught:
        load(path, **asked)
    said = caught.value.problem
    assert "\n" not in str(caught.value)
    assert wrong == 1 or f"{wrong:,} of {rows:,} " in said
    assert (f" and {wrong - faults.NAMED} more" in said) == (wrong > faults.NAMED)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("columns", COLUMNS)
@settings(max_examples=8, suppress_health_check=FIXTURES)
@given(values=VALUES)
def test_every_bad_row_is_counted_named_and_left_out_in_every_file(tmp_path_factory, name, columns, values):
    values, least = [9, *values, 9], int(columns != "both")
    path = write(tmp_path_factory.mktemp("rows") / name, [COLUMNS[columns](value) for value in values])
    most = 2**31 - (1 - least)
    kept = [v for v in values if v is not None and v == v // 1 and least <= v < most]
    wrong, trace = len(values) - len(kept), load(path, skip_bad=True)
    assert trace.lengths.tolist() == [value + (columns == "both") for value in kept]
    assert trace.left_out.startswith(f"{wrong} of {len(values)} rows " if wrong else "")
    assert trace.origin.endswith(trace.left_out)
    if columns == "rl":
        assert (len(trace.group), trace.step.tolist()) == (len(kept), [3] * len(kept))
    if wrong:
        refused(path, wrong, len(values))
    else:
        assert (trace.left_out, load(path).lengths.tolist()) == ("", trace.lengths.tolist())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("beside", ["step", "prompt_id"])
def test_a_row_that_does_not_say_its_step_or_group_is_bad(tmp_path, name, beside):
    rows = [{"length": 5 + i, "step": i // 2, "prompt_id": i // 2, beside: said} for i, said in enumerate([0, None, 1])]
    path = write(tmp_path / name, [*rows, {**rows[0], "length": 9}])
    trace = load(path, skip_bad=True)
    assert (trace.lengths.tolist(), len(trace.step), len(trace.group)) == ([5, 7, 9], 3, 3)
    refused(path, 1, 4)


def test_lines_are_counted_as_editors_do(tmp_path):
    (tmp_path / "a.csv").write_text("id,length\na,5\n\nb,n/a\nc,\nd,0\ne,7,8\nf,6\n\n")
    (tmp_path / "b.jsonl").write_text('{"length": 5}\n{"length": 6\n{"len": 5}\n{"length": true}\n{"length": "7"}\n8')
    (tmp_path / "c.csv").write_text("length,prompt_id,step\n5,1,1\n,1,1\n6,2,1\n0,,\n7,3,2\n")
    for name, lengths, lines in (("a.csv", [5, 6], "34567"), ("b.jsonl", [5, 8], "2345"), ("c.csv", [5, 6, 7], "35")):
        trace = load(name, skip_bad=True, column="length")
        assert trace.lengths.tolist() == lengths
        assert all(f"{line} (" in trace.left_out for line in lines)
    assert (trace.group.tolist(), trace.step.tolist()) == ([1, 2, 3], [1, 1, 2])


@given(
    rows=st.lists(st.sampled_from(["5", "", " ", "70", '""', "x"]), min_size=1, max_size=12),
    ends=st.sampled_from(["", "\n", "\n\n", "\n \n\n"]), newline=st.sampled_from(["\n", "\r\n"]),
    block=st.integers(1, 12),
)  # fmt: skip
@settings(suppress_health_check=FIXTURES)
def test_a_blank_line_is_a_row_unless_nothing_comes_after_it(tmp_path_factory, monkeypatch, rows, ends, newline, block):
    """Whatever piece of the file it is read in."""
    monkeypatch.setattr("odcsim.reading.csvs.BLOCK", block)
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    path.write_bytes(("length\n9\n" + "\n".join(rows) + "\n9" + ends).replace("\n", newline).encode())
    trace = load(path, skip_bad=True)
    assert trace.lengths.tolist() == [9, *(int(row) for row in rows if row.isdecimal()), 9]
    wrong = [3 + i for i, row in enumerate(rows) if not row.isdecimal()]
    assert trace.left_out.startswith(f"{len(wrong)} of {len(rows) + 2} rows" if wrong else "")
    assert all(f"{line}" in trace.left_out for line in wrong[: faults.NAMED])


@pytest.mark.parametrize("counts", [False, True])
@settings(max_examples=20, suppress_health_check=FIXTURES)
@given(shards=st.lists(st.lists(st.sampled_from([None, 5, 70]), min_size=1, max_size=3), min_size=1, max_size=5))
def test_a_shard_of_nothing_else_is_left_out_and_named(tmp_path_factory, strict, counts, shards):
    """Whichever it is, unless all are; without being asked for that, the rows of all shards are in one error."""
    path, asked = tmp_path_factory.mktemp("shards"), {"tokenizer": strict} if counts else {}
    for number, rows in enumerate(shards):
        said = [{"messages": TALK if value else TALK[:1]} if counts else {"length": value} for value in rows]
        write(path / f"{number}.jsonl", said)
    good = [value for rows in shards for value in rows if value]
    wrong, spent = sum(map(len, shards)) - len(good), [n for n, rows in enumerate(shards) if not any(rows)]
    if wrong:
        refused(path, wrong, wrong + len(good), **asked)
    if not good:
        refused(path, wrong, wrong, skip_bad=True, **asked)
        return
    trace = load(path, skip_bad=True, **asked)
    assert trace.size == len(good)
    assert counts or trace.lengths.tolist() == good
    assert trace.left_out.endswith(", ".join(f"{number}.jsonl" for number in spent))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_conversations_that_are_none(tmp_path, folder, name):
    """Also where the first is one of them; counted, and recalled."""
    path = write(tmp_path / name, CHATS * 200)
    refused(path, 400, 800, tokenizer=folder)
    one, other = (load(path, tokenizer=folder, skip_bad=True) for _ in range(2))
    assert one.left_out == other.left_out
    assert one.left_out.startswith(f"400 of 800 rows left out: {'lines' if name == 'a.jsonl' else 'rows'} 1, 3, ")
    assert one.lengths.tolist() == other.lengths.tolist() == one.lengths[:2].tolist() * 200
    part = load(path, tokenizer=folder, sample=100, skip_bad=True)
    assert part.population == pytest.approx(400, abs=120)


TEXTS = [  # names, contents, rows that are none, and others
    ("a.jsonl", '{"prompt": "a", "completion": "b"}\n{"prompt": "a", "completion": null}\n{broken\n7\n', 3, 1),
    ("a.csv", "prompt,completion\na,b\n\n,\nc,d,e\nf,g\n", 2, 3), ("a.jsonl", '{"text": "a"}\n{"text": ""}\n', 0, 2),
]  # fmt: skip


def test_texts_that_are_none(tmp_path, folder):
    for name, content, wrong, left in TEXTS:
        (tmp_path / name).write_text(content)
        trace = load(tmp_path / name, tokenizer=folder, skip_bad=True)
        assert trace.size == left
        assert trace.left_out.startswith(f"{wrong} of {wrong + left} " if wrong else "")


def test_rollouts_keep_their_groups_beside_rows_that_are_left_out(tmp_path, folder):
    rows = [{"input": p, "output": o, "step": 7} for p, o in (("a", "x"), ("a", None), ("b", "y"), ("b", "z"))]
    trace = load(write(tmp_path / "7.jsonl", rows), tokenizer=folder, skip_bad=True)
    assert (trace.group.tolist(), trace.step.tolist()) == ([0, 1, 1], [7] * 3)
    del rows[0]["step"]
    trace = load(write(tmp_path / "7.jsonl", [rows[3], *rows]), tokenizer=folder, skip_bad=True)
    assert (trace.group.tolist(), trace.step.tolist()) == ([0, 0, 0], [7] * 3)


@pytest.mark.parametrize("name", ARROWS)
def test_masks_count_beside_rows_that_have_none(tmp_path, name):
    for number, bad_row in enumerate((([1, 2, 3], None), (None, [1]))):
        (tmp_path / str(number)).mkdir()
        rows = [{"input_ids": i, "loss_mask": m} for i, m in (([1, 2, 3], [0, 1, 1]), bad_row, ([4, 5], [0, 0]))]
        trace = load(write(tmp_path / str(number) / name, rows), skip_bad=True)
        assert (trace.lengths.tolist(), trace.loss.tolist()) == ([3, 2], [2, 0])


LINES = {
    "compare a.csv --model tiny --gpu a100 --devices 2 --minibatch 2 --minibatches 2": "--skip-bad",
    "sweep grid.toml --jobs 1 -o b.csv": "leave it out with skip_bad",
    "check plan.json --lengths a.csv": "--skip-bad",
}


@pytest.mark.parametrize("line", LINES)
def test_commands_say_what_was_left_out(line, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("length\n" + "512\n" * 9 + "\n512\n")
    (tmp_path / "plan.json").write_text("[[[0, 1]], [[8, 9]]]")
    grid = 'trace = "a.csv"\nmodel = "tiny"\ngpu = "a100"\ndevices = 2\nminibatch = [1, 2]\nminibatches = 2\n'
    grid += "balancer = ['native']\n"
    (tmp_path / "grid.toml").write_text(grid)
    assert main(line.split()) == 2
    assert LINES[line] in capsys.readouterr().err  # the way out, as whoever asks would write it
    assert not (tmp_path / "b.csv").exists()
    (tmp_path / "grid.toml").write_text(f"skip_bad = true\n{grid}")
    assert main([*line.split(), *["--skip-bad"] * (LINES[line] == "--skip-bad")]) == 0
    assert load("a.csv", skip_bad=True).left_out in capsys.readouterr().err
