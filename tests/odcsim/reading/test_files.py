"""Every format reads the same lengths, and bad input is one line that says where and what to do."""

import json
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.reading import load
from odcsim.reading.text import open_text

LENGTHS = [5, 70, 900]
BIG = 2**31


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def saved(path, **columns):
    if path.suffix == ".npz":
        np.savez(path, **{k: np.array(v) for k, v in columns.items()})
    elif path.suffix == ".npy":
        np.save(path, np.array(columns["length"]))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "length\n5\n70\n900\n"),
        ("a.csv", "\ufeffLength\r\n5\r\n70\r\n900\r\n"),
        ("a.csv", "id,Seq-Len\nx,5\ny,70\nz,900"),
        ("a.csv", '"length","text"\n5,"a, b"\n70,"two\nlines"\n900,""\n'),
        ("a.csv", "length\n5.0\n70\n9e2\n\n \n"),
        ("a.csv", "prompt;response\n1;4\n70;0\n450;450\n"),
        ("a.tsv", "num_tokens\tid\n5\t1\n70\t2\n900\t3\n"),
        ("a.txt", "5\n70\n900\n"),
        ("a.jsonl", '{"length": 5}\n\n{"length": 70, "more": 1}\n{"length": 900.0}\n'),
        ("a.jsonl", "5\n70\n900"),
        ("a.jsonl", '{"prompt_tokens": 1, "completion_tokens": 4}\n{"prompt_tokens": 70, "completion_tokens": 0}\n'
                    '{"prompt_tokens": 450, "completion_tokens": 450}'),
        ("a.json", "[5, 70, 900]"),
        ("a.json", '[{"length": 5}, {"length": 70}, {"length": 900}]'),
        ("a.json", '{"note": "words", "lengths": [5, 70, 900]}'),
    ],
)  # fmt: skip
def test_text_formats(tmp_path, name, content):
    assert load(write(tmp_path, name, content)).lengths.tolist() == LENGTHS


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet"])
def test_binary_formats(tmp_path, suffix):
    assert load(saved(tmp_path / f"a.{suffix}", length=LENGTHS)).lengths.tolist() == LENGTHS
    assert load(saved(tmp_path / f"a.{suffix}", length=[5.0, 70.0, 900.0])).lengths.tolist() == LENGTHS


def test_one_unnamed_array_and_named_fields(tmp_path):
    np.savez(tmp_path / "a.npz", np.array(LENGTHS))
    assert load(tmp_path / "a.npz").lengths.tolist() == LENGTHS
    np.save(tmp_path / "b.npy", np.array([(1, 4), (70, 0)], dtype=[("prompt", int), ("response", int)]))
    assert load(tmp_path / "b.npy").lengths.tolist() == [5, 70]


def test_a_path_works_as_text_too_and_column_picks(tmp_path):
    path = write(tmp_path, "a.csv", "prompt,response\n1,4\n2,5\n")
    assert load(str(path)).lengths.tolist() == [5, 7]
    assert load(str(path), column="Response").lengths.tolist() == [4, 5]
    assert load(str(path), column="prompt").loss is None


def test_columns_without_a_header_are_numbered(tmp_path):
    path = write(tmp_path, "a.csv", "1,4\n2,5\n")
    with pytest.raises(InputError, match="among '1', '2'; choose one with --column"):
        load(path)
    assert load(path, column="2").lengths.tolist() == [4, 5]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "json"])
def test_rl_rollouts_keep_step_group_and_loss(tmp_path, suffix):
    rows = [("7", "b-1", 10, 1), ("7", "a-0", 10, 2), ("9", "b-1", 10, 3)]
    names = ("step", "prompt_id", "prompt", "response")
    path = tmp_path / f"a.{suffix}"
    records = [dict(zip(names, (int(s), *rest), strict=True)) for s, *rest in rows]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif suffix == "csv":
        write(tmp_path, "a.csv", "\n".join(",".join(map(str, row)) for row in [names, *rows]))
    else:
        lines = map(json.dumps, records)
        write(tmp_path, path.name, "\n".join(lines) if suffix == "jsonl" else json.dumps(records))
    trace = load(path)
    assert trace.lengths.tolist() == [11, 12, 13]
    assert trace.loss.tolist() == [1, 2, 3]
    assert trace.step.tolist() == [7, 7, 9]
    assert trace.group.tolist() == [0, 1, 0]


def test_whole_number_groups_stay_and_ids_too_large_for_a_float_do_not_merge(tmp_path):
    assert load(write(tmp_path, "a.csv", "length,group\n1,40\n2,40\n3,7\n")).group.tolist() == [40, 40, 7]
    path = write(tmp_path, "b.csv", f"length,uid\n1,{2**60}\n2,{2**60 + 1}\n3,{2**60}\n")
    assert load(path).group.tolist() == [2**60, 2**60 + 1, 2**60]
    path = write(tmp_path, "c.csv", f"length,uid\n1,{2**70}\n2,{2**70 + 1}\n3,{2**70}\n")
    assert load(path).group.tolist() == [0, 1, 0]


def test_loss_column(tmp_path):
    assert load(write(tmp_path, "a.csv", "length,loss_tokens\n5,0\n6,6\n")).loss.tolist() == [0, 6]
    assert load(write(tmp_path, "b.csv", "length\n5\n")).loss is None


@given(rows=st.lists(st.tuples(st.integers(1, 2**30), st.integers(0, 2**30 - 1)), min_size=1, max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_the_bulk_parse_and_the_exact_reading_agree(tmp_path, rows):
    body = "\n".join(f"{a},{b}" for a, b in rows)
    plain = write(tmp_path, "plain.csv", "prompt,response\n" + body)
    texts = write(tmp_path, "texts.csv", "prompt,response,id\n" + body.replace("\n", ",x\n") + ",x")
    quotes = write(tmp_path, "quotes.csv", "prompt,response,id\n" + body.replace("\n", ',"x,\ny"\n') + ",x\n")
    assert all(len(table) for path in (plain, texts) for table in open_text(path)._bulk([0, 1]))
    assert len(rows) == 1 or [*open_text(quotes)._bulk([0, 1])] == [None]
    for path in (plain, texts, quotes):
        assert load(path).lengths.tolist() == [a + b for a, b in rows]


BAD = [
    ("empty.csv", "", "empty.csv: the file is empty"),
    ("blank.csv", "\n \n", "the file is empty"),
    ("header.csv", "length\n", "header.csv: holds no rows"),
    ("headers.csv", "prompt,response\n\n", "holds no rows"),
    ("text.csv", "length\n5\nabc\n", "text.csv:3: column 'length' holds 'abc'; it takes whole numbers"),
    ("gap.csv", "length,id\n5,1\n,2\n", "gap.csv:3: column 'length' holds nothing"),
    ("minus.csv", "length\n5\n-5\n", "minus.csv:3: column 'length' holds -5; it takes whole numbers from 1 to 2147"),
    ("zero.csv", "length\n5\n0\n", "zero.csv:3: column 'length' holds 0"),
    ("none.csv", "prompt,response\n5,1\n0,0\n", "none.csv:3: column 'prompt \\+ response' holds 0"),
    ("half.csv", "id,length\nx,5\nx,1.5\n", "half.csv:3: column 'length' holds 1.5"),
    ("nan.csv", "length\nnan\n", "nan.csv:2: column 'length' holds nan"),
    ("inf.txt", "3\ninf\n", "inf.txt:2: column 'length' holds inf"),
    ("big.csv", f"length\n{BIG}\n", "big.csv:2: column 'length' holds 2147483648"),
    ("sum.csv", f"prompt,response\n{BIG - 1},1\n", "sum.csv:2: column 'prompt \\+ response' holds 2147483648"),
    ("what.csv", "foo,bar\n1,2\n", "what.csv: no column of lengths among 'foo', 'bar'; choose one with --column"),
    ("ragged.csv", "length,id\n5,1\n6\n", "ragged.csv:3: 1 fields where the first line has 2; give every row"),
    ("wide.csv", "length\n5\n6,7\n", "wide.csv:3: 2 fields where the first line has 1"),
    ("inside.csv", "id,length\nx,5\nx,5,6\n", "inside.csv:3: 3 fields where the first line has 2"),
    ("quoted.csv", 'length,id\n5,"a\nb,c\nd",6\n', "quoted.csv:4: 3 fields where the first line has 2"),
    ("cr.csv", "id,length\rx,5\rx,5,6\r", "cr.csv:3: 3 fields where the first line has 2"),
    ("wide2.csv", "length\n5,6\n7,8\n", r"wide2.csv: 2 of 2 rows are bad: lines 2, 3 \(2 fields where the"),
    ("latin.csv", "length,name\n5,x\n6,é\n".encode("latin-1"), "latin.csv:3: is not UTF-8 text; save it as UTF-8"),
    ("nul.csv", b"length\n5\n\x00\n", "nul.csv:3: "),
    ("loss.csv", "length,loss\n5,6\n", "loss.csv:2: column 'loss' holds 6 of a sample of 5 tokens"),
    ("x.jsonl", '{"length": 5}\n{"length": 5', "x.jsonl:2: is not valid JSON .*; check that the file is whole"),
    ("key.jsonl", '{"length": 5}\n{"len": 5}', "key.jsonl:2: has no 'length'; give every row the same keys"),
    ("bare.jsonl", '{"length": 5, "loss": 5}\n7', "bare.jsonl:2: has no 'loss'"),
    ("yes.jsonl", '\n{"length": true}', "yes.jsonl:2: column 'length' holds True"),
    ("str.jsonl", '{"length": "5"}', "str.jsonl:1: column 'length' holds '5'"),
    ("nan.jsonl", '{"length": NaN}', "nan.jsonl:1: column 'length' holds nan"),
    ("minus.jsonl", '\n1\n\n-1', "minus.jsonl:4: column 'length' holds -1"),
    ("huge.jsonl", "1" + "0" * 400, "huge.jsonl:1: column 'length' holds inf"),
    ("deep.jsonl", "[" * 100_000, "deep.jsonl:1: is not valid JSON"),
    ("deep.json", "[" * 100_000, "deep.json: is not valid JSON"),
    ("blank.jsonl", "\n", "the file is empty"),
    ("x.json", "[]", "holds nothing where lengths belong"),
    ("y.json", "3", "holds int where lengths belong"),
    ("z.json", "{}", "holds no columns"),
    ("row.json", '[{"length": 1}, {"len": 1}]', "row.json, row 2: has no 'length'"),
    ("str.json", '[1, "2"]', "str.json, row 2: column 'length' holds '2'"),
    ("uneven.json", '{"length": [1, 2], "count": [1]}', "columns differ in length: 'length' 2, 'count' 1"),
    ("x.npy", b"\x93NUMPY\x01\x00", "x.npy: cannot be read .*; check that the file is whole"),
    ("x.npz", b"PK\x03\x04 not a zip", "x.npz: cannot be read"),
    ("x.parquet", b"PAR1 cut off", "x.parquet: cannot be read"),
    ("x.xlsx", b"any", "cannot tell the format from '.xlsx'; known: .csv"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(BAD)])
def test_bad_files(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load(write(tmp_path, name, content))
    assert "\n" not in str(caught.value)


def test_what_is_no_file(tmp_path):
    with pytest.raises(InputError, match="is a folder; name one file"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"gone\.csv: no such file; check the path"):
        load(str(tmp_path / "gone.csv"))


def test_a_wrong_column_is_told_with_the_nearest(tmp_path):
    path = write(tmp_path, "a.csv", "prompt,response\n1,4\n")
    with pytest.raises(InputError, match="no column 'respones'; did you mean 'response'"):
        load(path, column="respones")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 0], "row 2: column 'length' holds 0"),
        ([1.0, float("nan")], "row 2: column 'length' holds nan"),
        ([True, False], "1-D array of bool"),
        ([[1], [2]], "2-D array of int64"),
        (3, "0-D array"),
        ([], "holds no rows"),
        (["a"], "1-D array of <U1"),
    ],
)
def test_bad_arrays(tmp_path, values, message):
    with pytest.raises(InputError, match=message):
        load(saved(tmp_path / "a.npy", length=values))


def test_an_array_of_objects_is_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"x": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"array of objects, or no NPY"):
        load(tmp_path / "a.npy")


def test_a_null_in_parquet_is_named_and_truncation_found(tmp_path):
    with pytest.raises(InputError, match="row 2: column 'length' holds None"):
        load(saved(tmp_path / "a.parquet", length=[1, None]))
    whole = saved(tmp_path / "b.parquet", length=list(range(1, 5000))).read_bytes()
    for size in (1, 100, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InputError, match=r"b\.parquet: cannot be read"):
            load(write(tmp_path, "b.parquet", whole[:size]))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.parquet", length=[1])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'odcsim\[data\]'"):
        load(path)


SEEDS = {
    ".csv": b"prompt,response\n5,6\n7,8\n", ".tsv": b"length\tid\n5\ta\n", ".txt": b"5\n6\n",
    ".jsonl": b'{"length": 5, "step": 1}\n{"length": 6, "step": 1}\n', ".json": b'{"q": [0, 1], "length": [5, 6]}',
}  # fmt: skip


@st.composite
def damaged(draw, whole):
    """Random bytes, or a good file cut off or overwritten somewhere."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=80))
    at, junk = draw(st.integers(0, len(whole))), draw(st.binary(max_size=6))
    return whole[:at] + junk + whole[at + draw(st.integers(0, 40)) :]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".jsonl", ".json", ".npy", ".npz", ".parquet"])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_any_bytes_load_or_raise_input_error(tmp_path, suffix, data):
    path = tmp_path / f"fuzz{suffix}"
    whole = SEEDS.get(suffix) or saved(tmp_path / f"good{suffix}", length=LENGTHS).read_bytes()
    path.write_bytes(data.draw(damaged(whole)))
    with suppress(InputError):
        assert load(path).size > 0


def test_fields_inside_fields_are_named_where_no_column_holds_lengths(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"meta": {"lang": "en", "size": {"len": 5}, "done": true}, "reward": 1}\n')
    with pytest.raises(InputError, match=r"among 'meta', 'reward'; numbers lie inside one: --column meta\.size\.len$"):
        load(path)
    assert load(path, column="meta.size.len").longest == 5


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("late", ["count", "loss_tokens", "step", "prompt_id", "q", "labels"])
def test_a_key_that_only_later_rows_have_is_refused_where_it_would_count(tmp_path, suffix, late):
    """In another order it would be the first row's."""
    rows = [{"length": 5}, {"length": 6, late: [1, 2] if late == "labels" else 1}]
    for order in (rows, rows[::-1]):
        path = tmp_path / f"a{suffix}"
        text = [json.dumps(row) for row in order]
        path.write_text(f"[{','.join(text)}]" if suffix == ".json" else "\n".join(text))
        with pytest.raises(InputError, match=f"'{late}'.*every row the same"):
            load(path)


def test_a_key_that_only_later_rows_have_is_nobodys_where_it_does_not_count(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"length": 5}\n{"length": 6, "note": "a", "input_ids": [1]}\n7\n')
    assert load(tmp_path / "a.jsonl").lengths.tolist() == [5, 6, 7]


@pytest.mark.parametrize("kind", ["float16", ">f2", "float32", "float64", "longdouble", "int8", "uint64", "bool"])
def test_labels_of_any_kind_of_number_are_read_without_a_warning(tmp_path, kind):
    labels = np.array([0, 0, 1, 1]).astype(kind)
    np.savez(tmp_path / "a.npz", length=np.arange(1, 5), step=labels, group=labels)
    trace = load(tmp_path / "a.npz")
    assert [len(set(trace.step[:2])), len(set(trace.step))] == [1, 2]


@pytest.mark.parametrize("name", ["", "  "])
def test_the_empty_name_is_no_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("length\n5\n")
    with pytest.raises(InputError, match="the name of a trace is empty; name a trace"):
        load(name)
