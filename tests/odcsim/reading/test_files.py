"""Every kind of file reads the same rows, wherever it lies and however it is packed; any bytes load or are refused."""

import gzip
import io
import json
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rowfiles import ARRAYS, ARROWS, FILES, NESTED, TEXTS, write

from odcsim import InputError, load
from odcsim.reading.csvs import open_text

LENGTHS = [5, 70, 900]
FIXTURES = [HealthCheck.function_scoped_fixture]
SAVED = [name for name in FILES if "." in name]
FORMS = {  # columns by name: lengths, loss tokens, steps and groups are to be these
    "lengths": ({"length": LENGTHS}, {}),
    "floats": ({"Seq-Len": [5.0, 70.0, 900.0]}, {}),
    "parts": ({"prompt": [1, 70, 450], "response": [4, 0, 450]}, {"loss": [4, 0, 450]}),
    "loss": ({"num_tokens": LENGTHS, "loss_tokens": [0, 70, 6]}, {"loss": [0, 70, 6]}),
    "rollouts": ({"length": LENGTHS, "step": [7, 7, 9], "prompt_id": [40, 7, 40]},
                 {"step": [7, 7, 9], "group": [40, 7, 40]}),
}  # fmt: skip


def rows_of(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_every_file(tmp_path, name, form):
    columns, expected = FORMS[form]
    trace = load(write(tmp_path / name, rows_of(columns)))
    assert trace.lengths.tolist() == LENGTHS
    found = {key: None if (one := getattr(trace, key)) is None else one.tolist() for key in ("loss", "step", "group")}
    if name == "shards" and found["group"]:
        found["group"] = expected["group"] if len(set(found["group"])) == 3 else None  # two prompts of one name
    assert found == {"loss": None, "step": None, "group": None} | expected


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize(("ids", "groups"), [("aba", [0, 1, 0]), ((2**60, 2**60 + 1, 2**60), None)])
def test_groups_are_what_their_ids_say(tmp_path, name, ids, groups):
    """Also such as are too large for any number."""
    path = write(tmp_path / name, rows_of({"length": LENGTHS, "uid": list(ids)}))
    assert load(path).group.tolist() == (groups or list(ids))
    path = write(tmp_path / "a.csv", rows_of({"length": LENGTHS, "uid": [2**70, 2**70 + 1, 2**70]}))
    assert load(path).group.tolist() == [0, 1, 0]


@pytest.mark.parametrize(("name", "content"), [
    *[("a.csv", content) for content in (
        "\ufeffLength\r\n5\r\n70\r\n900\r\n", "id,Seq-Len\nx,5\ny,70\nz,900", "length\n5.0\n70\n9e2\n\n \n",
        '"length","text"\n5,"a, b"\n70,"two\nlines"\n900,""\n', "prompt;response\n1;4\n70;0\n450;450\n",
        "5\n70\n900\n")],
    ("a.jsonl", '{"length": 5}\n\n{"length": 70, "more": 1}\n{"length": 900.0}\n'), ("a.jsonl", "5\n70\n900"),
    ("a.json", "[5, 70, 900]"), ("a.json", '{"note": "words", "lengths": [5, 70, 900]}'), ("a.txt", "5\n70\n900\n"),
    ("a.jsonl", '{"length": 5}\n{"length": 70, "note": "a", "input_ids": [1]}\n900\n'),
])  # fmt: skip
def test_csv_and_json_as_people_write_them(tmp_path, name, content):
    (tmp_path / name).write_bytes(content.encode())
    assert load(tmp_path / name).lengths.tolist() == LENGTHS


def test_thousands_have_commas(tmp_path):
    for value in ("3,337", " 3,337 ", "3,337.0", "+3,337"):
        (tmp_path / "a.csv").write_text(f'length\n5\n"{value}"\n"1,003,337"\n')
        assert load(tmp_path / "a.csv").lengths.tolist() == [5, 3337, 1_003_337]
        (tmp_path / "b.csv").write_text(f'"{value}"\n5\n')
        assert load(tmp_path / "b.csv").lengths.tolist() == [3337, 5]


def test_a_column_is_picked_by_its_name(tmp_path):
    path = write(tmp_path / "a.csv", rows_of({"prompt": [1, 2], "response": [4, 5], "meta.len": [7, 8]}))
    for column, lengths in ((None, [5, 7]), ("Response", [4, 5]), ("prompt", [1, 2]), ("meta.len", [7, 8])):
        trace = load(str(path), column=column)
        assert (trace.lengths.tolist(), trace.loss is None) == (lengths, column is not None)
    (tmp_path / "b.csv").write_text("1,4\n2,5\n")  # no header: columns are numbered
    assert load(tmp_path / "b.csv", column="2").lengths.tolist() == [4, 5]
    np.savez(tmp_path / "a.npz", np.array(LENGTHS))
    np.save(tmp_path / "a.npy", np.array(LENGTHS))
    assert load(tmp_path / "a.npz").lengths.tolist() == load(tmp_path / "a.npy").lengths.tolist() == LENGTHS
    (tmp_path / "c.jsonl").write_text('{"meta": {"len": 1}, "meta.len": 5}\n')
    assert load(tmp_path / "c.jsonl", column="meta.len").lengths.tolist() == [5]


@pytest.mark.parametrize("name", [name for name in NESTED if name != "columns.json"])
def test_fields_inside_fields(tmp_path, name):
    path = write(tmp_path / name, [{"meta": {"use": {"len": n}}, "other": "a"} for n in LENGTHS])
    assert load(path, column="meta.use.len").lengths.tolist() == LENGTHS
    for column in ("meta.use.no", "mta.len", None):
        with pytest.raises(InputError):
            load(path, column=column)


@pytest.mark.parametrize("name", [name for name in SAVED if name != "a.feather.arrow"])
def test_a_packed_file_is_what_is_in_it(tmp_path, name):
    content = write(tmp_path / name, rows_of({"length": LENGTHS})).read_bytes()
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content[:9]) + gzip.compress(content[9:]))
    trace = load(str(tmp_path / f"{name}.gz"))
    assert (trace.lengths.tolist(), trace.name) == (LENGTHS, name)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", SAVED)
def test_a_pipe_is_known_by_its_first_bytes(tmp_path, monkeypatch, name, pack):
    content = write(tmp_path / name, rows_of({"length": LENGTHS})).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack(content))))
    assert load("-").lengths.tolist() == LENGTHS


def test_a_folder_of_shards_is_one_dataset_in_their_order_and_of_steps_keeps_them_apart(tmp_path):
    """As verl numbers files: step 10 comes after step 9, and prompts are other groups in another step."""
    for i, lengths in enumerate(([5], [70, 900], [1])):
        write(tmp_path / f"train-{i:05}-of-00003.parquet", rows_of({"length": lengths}))
    assert load(tmp_path).lengths.tolist() == [*LENGTHS, 1]
    write(tmp_path / "test-00000-of-00001.parquet", [{"length": 1}])
    with pytest.raises(InputError):
        load(tmp_path)
    (tmp_path / "steps").mkdir()
    for step in (9, 10):
        rows = [{"length": step * 10 + i, "step": step, "uid": "ab"[i // 2]} for i in range(4)]
        write(tmp_path / "steps" / f"{step}.jsonl", rows)
    trace = load(tmp_path / "steps")
    assert trace.lengths.tolist() == [90, 91, 92, 93, 100, 101, 102, 103]
    assert (trace.step.tolist(), trace.group.tolist()) == ([9] * 4 + [10] * 4, [0, 0, 1, 1, 2, 2, 3, 3])


def test_samples_of_a_step_are_lengths_whatever_is_beside_them(tmp_path):
    for columns in ({"step": [1, 1, 2], "seconds": [1.5, 1.5, 1.4]}, {"step": [1, 2, 3]}):
        path = write(tmp_path / "a.csv", rows_of({"tokens": LENGTHS, **columns}))
        assert load(path).lengths.tolist() == LENGTHS


@pytest.mark.parametrize("kind", ["float16", ">f2", "float32", "float64", "longdouble", "int8", "uint64", "bool"])
def test_labels_of_any_kind_of_number_are_read_without_a_warning(tmp_path, kind):
    labels = np.array([0, 0, 1, 1]).astype(kind)
    np.savez(tmp_path / "a.npz", length=np.arange(1, 5), step=labels, group=labels)
    trace = load(tmp_path / "a.npz")
    assert [len(set(trace.step[:2])), len(set(trace.step))] == [1, 2]


@given(rows=st.lists(st.tuples(st.integers(1, 2**30), st.integers(0, 2**30 - 1)), min_size=1, max_size=30))
@settings(suppress_health_check=FIXTURES, max_examples=40)
def test_the_bulk_parse_and_the_exact_reading_agree(tmp_path, rows):
    body = "\n".join(f"{a},{b}" for a, b in rows)
    contents = {
        "plain": f"prompt,response\n{body}", "texts": "prompt,response,id\n" + body.replace("\n", ",x\n") + ",x",
        "quotes": "prompt,response,id\n" + body.replace("\n", ',"x,\ny"\n') + ",x\n",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / f"{name}.csv").write_text(content)
        bulk = [*open_text(tmp_path / f"{name}.csv")._bulk([0, 1])]
        assert all(len(table) for table in bulk) if name != "quotes" else len(rows) == 1 or bulk == [None]
        assert load(tmp_path / f"{name}.csv").lengths.tolist() == [a + b for a, b in rows]


@pytest.mark.parametrize("name", [*TEXTS, *ARRAYS, *ARROWS[:2]])
@given(data=st.data())
@settings(suppress_health_check=FIXTURES, max_examples=60)
def test_any_bytes_load_or_raise_input_error(tmp_path, name, data):
    """Random ones, or a good file that is cut off or overwritten somewhere."""
    path = write(tmp_path / name, rows_of({"q": [0, 1], "length": [5, 6]} if name == "a.json" else {"length": LENGTHS}))
    whole, junk = path.read_bytes(), data.draw(st.binary(max_size=80))
    at, gone = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 40))
    path.write_bytes(junk if data.draw(st.booleans()) else whole[:at] + junk[:6] + whole[at + gone :])
    with suppress(InputError):
        assert load(path).size > 0


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", [{"length": 1}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError):
        load(path)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("late", ["count", "loss_tokens", "step", "prompt_id", "q", "labels"])
def test_a_key_that_only_some_rows_have_is_refused_where_it_would_count(tmp_path, name, late):
    rows = [{"length": 5}, {"length": 6, late: [1, 2] if late == "labels" else 1}]
    for order in (rows, rows[::-1]):
        text = [json.dumps(row) for row in order]
        (tmp_path / name).write_text(f"[{','.join(text)}]" if name == "a.json" else "\n".join(text))
        with pytest.raises(InputError):
            load(tmp_path / name)
