"""Rows that are no sample: all of them are counted and named at once, or left out, and the rest is as without them."""

import csv
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from texts import UNMARKED, tokenizer_in

from odcsim import ask
from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.reading import bad, load
from odcsim.reading.tokenizing import writing

BAD = [None, math.nan, -5, 0, 2.5, 2**31]
TALK = [{"role": "user", "content": "Who waits?"}, {"role": "assistant", "content": "Whoever is done."}]


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    refuses = "{% if messages|length < 2 %}{{ raise_exception('two turns') }}{% endif %}"
    return tokenizer_in(tmp_path_factory.mktemp("strict"), refuses + UNMARKED)


def as_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def as_table(path, rows):
    columns = {name: pa.array([row[name] for row in rows], pa.float64()) for name in rows[0]}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=3)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, pa.table(columns).schema) as writer:
            writer.write_table(pa.table(columns), max_chunksize=2)


def as_npy(path, rows):
    values = [tuple(math.nan if v is None else v for v in row.values()) for row in rows]
    np.save(path, np.array(values, dtype=[(name, float) for name in rows[0]]))


def as_shards(path, rows):
    path.mkdir()
    for number, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
        as_csv(path / f"part-{number}.csv", part)


WRITERS = {
    "a.csv": as_csv,
    "a.jsonl": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
    "a.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "b.json": lambda path, rows: path.write_text(json.dumps({name: [row[name] for row in rows] for name in rows[0]})),
    "a.parquet": as_table,
    "a.arrow": as_table,
    "a.npy": as_npy,
    "shards": as_shards,
}
COLUMNS = {
    "length": lambda value: {"length": value},
    "both": lambda value: {"prompt_tokens": value, "completion_tokens": 0 if value is None else 1},
    "rl": lambda value: {"length": value, "prompt_id": 7, "step": 3},
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("columns", COLUMNS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.sampled_from([*BAD, 5, 70, 900]), min_size=2, max_size=20))
def test_every_bad_row_is_counted_named_and_left_out_in_every_file(tmp_path_factory, name, columns, values):
    values = [9, *values, 9]
    path = tmp_path_factory.mktemp("rows") / name
    WRITERS[name](path, [COLUMNS[columns](value) for value in values])
    least = 0 if columns == "both" else 1
    good = [value is not None and value == value // 1 and least <= value < 2**31 - (1 - least) for value in values]
    wrong = good.count(False)
    trace = load(path, skip_bad=True)
    kept = [value for value, fine in zip(values, good, strict=True) if fine]
    assert trace.lengths.tolist() == [value + (columns == "both") for value in kept]
    if not wrong:
        assert trace.left_out == ""
        assert load(path).lengths.tolist() == trace.lengths.tolist()
        return
    assert trace.left_out.startswith(f"{wrong} of {len(values)} rows left out: ")
    assert trace.origin.endswith(trace.left_out)
    if columns == "rl":
        assert len(trace.group) == len(kept)
        assert trace.step.tolist() == [3] * len(kept)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).count("\n") == 0
    assert caught.value.fix.endswith("--skip-bad")
    if wrong > 1:
        assert f"{wrong} of {len(values)} rows are bad: " in caught.value.problem
        assert (f" and {wrong - bad.NAMED} more" in caught.value.problem) == (wrong > bad.NAMED)


def test_rows_are_named_where_they_stand(tmp_path):
    (tmp_path / "a.csv").write_text("id,length\na,5\n\nb,n/a\nc,\nd,0\ne,7,8\nf,6\n\n")
    words = (
        "5 of 7 rows left out: lines 3 (is blank), 4 (column 'length' holds 'n/a'), 5 (column 'length' holds nothing), "
        "6 (column 'length' holds 0), 7 (3 fields where the first line has 2)"
    )
    assert load(tmp_path / "a.csv", skip_bad=True).left_out == words
    assert load(tmp_path / "a.csv", skip_bad=True).lengths.tolist() == [5, 6]
    (tmp_path / "b.jsonl").write_text('{"length": 5}\n{"length": 6\n{"len": 5}\n{"length": true}\n{"length": "7"}\n8')
    told = load(tmp_path / "b.jsonl", skip_bad=True, column="length").left_out
    assert told.startswith("4 of 6 rows left out: lines 2 (is not valid JSON")
    assert "3 (has no 'length'), 4 (column 'length' holds True), 5 (column 'length' holds '7')" in told


def test_groups_and_steps_are_those_of_the_rows_that_are_left(tmp_path):
    (tmp_path / "a.csv").write_text("length,prompt_id,step\n5,1,1\n,1,1\n6,2,1\n0,,\n7,3,2\n")
    trace = load(tmp_path / "a.csv", skip_bad=True)
    assert (trace.group.tolist(), trace.step.tolist()) == ([1, 2, 3], [1, 1, 2])


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("beside", ["step", "prompt_id"])
def test_a_row_that_does_not_say_its_step_or_group_is_bad(tmp_path, name, beside):
    rows = [{"length": 5 + i, "step": i // 2, "prompt_id": i // 2, beside: said} for i, said in enumerate([0, None, 1])]
    WRITERS[name](tmp_path / name, [*rows, {**rows[0], "length": 9}])
    trace = load(tmp_path / name, skip_bad=True)
    assert trace.lengths.tolist() == [5, 7, 9]
    assert len(trace.step) == len(trace.group) == 3
    assert trace.left_out.startswith("1 of 4 rows left out: ")
    with pytest.raises(InputError, match=f"column '{beside}' holds nothing; say it in every row"):
        load(tmp_path / name)


def test_a_file_of_nothing_else_leaves_none(tmp_path):
    (tmp_path / "a.csv").write_text("length\n0\n-1\n")
    told = r"a\.csv: 2 of 2 rows are bad: lines 2 \(.*holds 0\), 3 \(.*holds -1\); no row is left without them$"
    with pytest.raises(InputError, match=told):
        load(tmp_path / "a.csv", skip_bad=True)
    (tmp_path / "b.jsonl").write_text('{"length": null}')
    with pytest.raises(InputError, match=r"b\.jsonl:1: column 'length' holds None; no row is left without them$"):
        load(tmp_path / "b.jsonl", skip_bad=True)


@pytest.mark.parametrize("counts", [False, True])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(shards=st.lists(st.lists(st.sampled_from([None, 5, 70]), min_size=1, max_size=3), min_size=1, max_size=5))
def test_a_shard_of_nothing_else_is_left_out_and_named(tmp_path_factory, strict, counts, shards):
    """Whichever it is, unless all are; without being asked for that, the rows of all shards are in one error."""
    path, asked = tmp_path_factory.mktemp("shards"), {"tokenizer": strict} if counts else {}
    for number, rows in enumerate(shards):
        said = [{"messages": TALK if value else TALK[:1]} if counts else {"length": value} for value in rows]
        (path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, said)))
    good = [value for rows in shards for value in rows if value]
    wrong, spent = sum(map(len, shards)) - len(good), [n for n, rows in enumerate(shards) if not any(rows)]
    if wrong > 1:
        with pytest.raises(InputError, match=rf"{wrong} of {wrong + len(good)} rows are bad: .*--skip-bad$"):
            load(path, **asked)
    if not good:
        with pytest.raises(InputError, match=r"no row is left without them$"):
            load(path, skip_bad=True, **asked)
        return
    trace = load(path, skip_bad=True, **asked)
    assert trace.size == len(good)
    assert counts or trace.lengths.tolist() == good
    named = f"; no row is left of {', '.join(f'{number}.jsonl' for number in spent)}"
    assert trace.left_out.endswith(named) if spent else "no row is left" not in trace.left_out


@pytest.mark.parametrize("value", ["3,337", " 3,337 ", "3,337.0", "+3,337"])
def test_thousands_have_commas(tmp_path, value):
    """As spreadsheets write them, whatever row it is and whether there is a header."""
    (tmp_path / "a.csv").write_text(f'length\n5\n"{value}"\n"1,003,337"\n')
    assert load(tmp_path / "a.csv").lengths.tolist() == [5, 3337, 1_003_337]
    (tmp_path / "b.csv").write_text(f'"{value}"\n5\n')
    assert load(tmp_path / "b.csv").lengths.tolist() == [3337, 5]


@pytest.mark.parametrize("value", ["3,33", "3337,1", "33,37", ",337", "3,3377"])
def test_what_only_looks_like_thousands_is_no_number(tmp_path, value):
    (tmp_path / "a.csv").write_text(f'length\n5\n"{value}"\n')
    with pytest.raises(InputError, match=f"holds '{value}'"):
        load(tmp_path / "a.csv")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.sampled_from(["5", "", " ", "70", '""', "x"]), min_size=1, max_size=12),
    ends=st.sampled_from(["", "\n", "\n\n", "\n \n\n"]),
    newline=st.sampled_from(["\n", "\r\n"]),
    block=st.integers(1, 12),
)
def test_a_blank_line_is_a_row_unless_nothing_comes_after_it(tmp_path_factory, monkeypatch, rows, ends, newline, block):
    """Whatever piece of the file it is read in."""
    monkeypatch.setattr("odcsim.reading.text.BLOCK", block)
    path = tmp_path_factory.mktemp("rows") / "a.csv"
    path.write_bytes(("length\n9\n" + "\n".join(rows) + "\n9" + ends).replace("\n", newline).encode())
    trace = load(path, skip_bad=True)
    assert trace.lengths.tolist() == [9, *(int(row) for row in rows if row.isdecimal()), 9]
    wrong = [3 + i for i, row in enumerate(rows) if not row.isdecimal()]
    assert trace.left_out.startswith(f"{len(wrong)} of {len(rows) + 2} rows" if wrong else "")
    assert all(f"{line}" in trace.left_out for line in wrong[: bad.NAMED])


CHATS = [
    {"messages": []},
    {"messages": TALK},
    {"messages": None},
    {"messages": TALK[:1]},
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_conversations_that_are_none(tmp_path, folder, name):
    """Also where the first is one of them."""
    path, rows = tmp_path / name, CHATS * 200
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        WRITERS[name](path, rows)
    unit = "lines" if name == "a.jsonl" else "rows"
    whole = r"400 of 800 rows are bad: {} 1, 3, 5, 7, 9, 11 \(has no messages\) and 394 more; mend them, or leave"
    with pytest.raises(InputError, match=whole.format(unit)):
        load(path, tokenizer=folder)
    one, other = (load(tmp_path / name, tokenizer=folder, skip_bad=True) for _ in range(2))  # counted, and recalled
    assert one.left_out == other.left_out
    assert one.left_out.startswith(f"400 of 800 rows left out: {unit} 1, 3, ")
    assert one.lengths.tolist() == other.lengths.tolist() == one.lengths[:2].tolist() * 200
    part = load(path, tokenizer=folder, sample=100, skip_bad=True)
    assert part.whole == pytest.approx(400, abs=120)
    assert "of 100 rows left out" in part.left_out


def test_a_completion_that_is_null_and_a_text_without_tokens(tmp_path, folder):
    rows = [{"prompt": "a", "completion": c} for c in ("b", None, "c")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n{broken\n7\n")
    trace = load(tmp_path / "a.jsonl", tokenizer=folder, skip_bad=True)
    assert trace.left_out.startswith(
        "3 of 5 rows left out: lines 2 (has no text in 'completion'), 4 (is not valid JSON"
    )
    assert trace.left_out.endswith("5 (is not an object)")
    assert len(trace.lengths) == len(trace.loss) == 2
    (tmp_path / "b.csv").write_text("prompt,completion\na,b\n\n,\nc,d,e\nf,g\n")
    trace = load(tmp_path / "b.csv", tokenizer=folder, skip_bad=True)
    assert trace.left_out == "2 of 5 rows left out: lines 3 (is blank), 5 (has other fields than the first line)"


def test_what_a_template_refuses_is_one_bad_row_among_blocks_of_good_ones(tmp_path, strict):
    rows = [{"messages": TALK}] * (2 * writing.BLOCK)
    rows.insert(writing.BLOCK + 7, CHATS[3])
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trace = load(tmp_path / "a.jsonl", tokenizer=strict, skip_bad=True)
    assert trace.size == 2 * writing.BLOCK
    assert trace.left_out.startswith(f"1 of {trace.size + 1:,} rows left out: line {writing.BLOCK + 8} (the chat")


def test_rollouts_keep_their_groups_beside_rows_that_are_left_out(tmp_path, folder):
    rows = [{"input": p, "output": o, "step": 7} for p, o in (("a", "x"), ("a", None), ("b", "y"), ("b", "z"))]
    (tmp_path / "7.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trace = load(tmp_path / "7.jsonl", tokenizer=folder, skip_bad=True)
    assert (trace.group.tolist(), trace.step.tolist()) == ([0, 1, 1], [7] * 3)
    del rows[0]["step"]
    (tmp_path / "7.jsonl").write_text("\n".join(map(json.dumps, [rows[3], *rows])))
    trace = load(tmp_path / "7.jsonl", tokenizer=folder, skip_bad=True)
    assert (trace.group.tolist(), trace.step.tolist()) == ([0, 0, 0], [7] * 3)
    assert trace.left_out.endswith(": lines 2 (has no 'step'), 3 (has no text in 'output')")


def test_shards_tell_in_which_of_them(tmp_path):
    as_shards(tmp_path / "data", [{"length": value} for value in (5, 0, 6, 7, None, 8)])
    with pytest.raises(
        InputError, match=r"2 of 6 rows are bad: part-0\.csv:3 \(.*holds 0\), part-1\.csv:3 \(.*holds noth"
    ):
        load(tmp_path / "data")
    assert load(tmp_path / "data", skip_bad=True).lengths.tolist() == [5, 6, 7, 8]


def test_commands_and_python_say_what_was_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("length\n" + "512\n" * 99 + "\n512\n")
    line = "odcsim: a.csv: 1 of 101 rows left out: line 101 (is blank)\n"
    assert main(["compare", "a.csv", "--model", "qwen2.5-0.5b", "--gpu", "a100", "--devices", "2", "--minibatch", "2",
                 "--minibatches", "2", "--skip-bad"]) == 0  # fmt: skip
    assert capsys.readouterr().err == line
    assert main(["trace", "info", "a.csv"]) == 2
    assert capsys.readouterr().err.endswith(
        "a.csv:101: is blank; give every row the same columns, or leave it out with --skip-bad\n"
    )
    trace = ask("a.csv", "qwen2.5-0.5b", gpu="a100", devices=2, skip_bad=True).trace
    assert (trace.size, trace.left_out) == (100, line.strip().partition("a.csv: ")[2])


def test_a_sweep_and_a_check_say_it_too(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("length\n" + "512\n" * 9 + "\n512\n")
    told = "odcsim: a.csv: 1 of 11 rows left out: line 11 (is blank)\n"
    grid = 'trace = "a.csv"\nskip_bad = true\nmodel = "tiny"\ngpu = "a100"\ndevices = 2\nminibatch = [1, 2]\n'
    (tmp_path / "grid.toml").write_text(f"{grid}minibatches = 2\nbalancer = ['native']\n")
    assert main(["sweep", "grid.toml", "--jobs", "1", "-o", "b.csv"]) == 0
    assert capsys.readouterr().err == told
    (tmp_path / "dirty.toml").write_text(grid.replace("skip_bad = true\n", ""))
    assert main(["sweep", "dirty.toml", "-o", "c.csv"]) == 2
    fix = "give every row the same columns, or leave it out with skip_bad = true"
    assert capsys.readouterr().err == f"odcsim: error: dirty.toml: trace: a.csv:11: is blank; {fix}\n".replace(
        "a.csv", str(tmp_path / "a.csv")
    )
    (tmp_path / "plan.json").write_text("[[[0, 1]], [[8, 9]]]")
    assert main(["check", "plan.json", "--lengths", "a.csv", "--skip-bad"]) == 0
    assert capsys.readouterr().err == told
    assert main(["check", "plan.json", "--lengths", "a.csv"]) == 2


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_masks_count_beside_rows_that_have_none(tmp_path, name):
    table = pa.table({"input_ids": [[1, 2, 3], None, [4, 5]], "loss_mask": [[0, 1, 1], [1], [0, 0]]})
    both = pa.table({"input_ids": [[1, 2, 3], [1], [4, 5]], "loss_mask": [[0, 1, 1], None, [0, 0]]})
    for one in (table, both):
        if name == "a.parquet":
            pq.write_table(one, tmp_path / name)
        else:
            with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, one.schema) as writer:
                writer.write_table(one)
        trace = load(tmp_path / name, skip_bad=True)
        assert (trace.lengths.tolist(), trace.loss.tolist()) == ([3, 2], [2, 0])
