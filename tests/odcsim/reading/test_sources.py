"""Data where it lives: packed, by a pipe, in fields inside fields, in folders of files; logs that hold no lengths."""

import gzip
import io
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odcsim.errors import InputError
from odcsim.reading import load
from odcsim.support import whole

LENGTHS = [5, 70, 900]
PLAIN = {
    "a.csv": b"length\n5\n70\n900\n",
    "a.txt": b"5\n70\n900\n",
    "a.jsonl": b'{"length": 5}\n{"length": 70}\n{"length": 900}\n',
    "a.json": b'{\n"length": [5, 70, 900]}',
}


def arrays(kind):
    file = io.BytesIO()
    if kind == ".npy":
        np.save(file, np.array(LENGTHS))
    elif kind == ".npz":
        np.savez(file, length=np.array(LENGTHS))
    elif kind == ".parquet":
        pq.write_table(pa.table({"length": LENGTHS}), file)
    else:
        opened = pa.ipc.new_file if kind == ".file" else pa.ipc.new_stream
        with opened(file, pa.schema({"length": pa.int64()})) as writer:
            writer.write_table(pa.table({"length": LENGTHS}))
    return file.getvalue()


CONTENTS = PLAIN | {f"a{kind}": arrays(kind) for kind in (".npy", ".npz", ".parquet", ".arrow", ".file")}


@pytest.mark.parametrize("name", [name for name in CONTENTS if name != "a.file"])
def test_a_packed_file_is_what_is_in_it(tmp_path, name):
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(CONTENTS[name][:9]) + gzip.compress(CONTENTS[name][9:]))
    trace = load(str(path))
    assert (trace.lengths.tolist(), trace.name) == (LENGTHS, name)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_pipe_is_told_by_its_first_bytes(monkeypatch, name, pack):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack(CONTENTS[name]))))
    assert load("-").lengths.tolist() == LENGTHS


def test_what_is_wrong_inside_is_told_of_the_file_itself(tmp_path, monkeypatch):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"length\n5\nx\n"))
    with pytest.raises(InputError, match=r"a\.csv\.gz:3: column 'length' holds 'x'") as caught:
        load(path)
    assert caught.value.where == f"{path}:3"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"length\n5\nx\n")))
    with pytest.raises(InputError, match=r"^stdin:3: column"):
        load("-")


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(PLAIN["a.csv"], mtime=0)[:-9], b""])
def test_damaged_packing_is_one_line(tmp_path, content):
    (tmp_path / "a.csv.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"a.csv.gz: (cannot be unpacked|the file is empty)"):
        load(tmp_path / "a.csv.gz")


def test_a_bomb_is_left_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "SPARE", 1 << 10)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1\n" * (1 << 22)))
    with pytest.raises(InputError, match="unpacks to more than 100 times its size"):
        load(tmp_path / "a.csv.gz")


INSIDE = [{"meta": {"use": {"len": n}}, "other": "a"} for n in LENGTHS]


def inside(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(INSIDE), path)
    elif name.endswith("arrow"):
        table = pa.Table.from_pylist(INSIDE)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    else:
        lines = [json.dumps(row) for row in INSIDE]
        path.write_text("\n".join(lines) if name.endswith("jsonl") else f"[{','.join(lines)}]")
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.arrow"])
def test_fields_inside_fields(tmp_path, name):
    path = inside(tmp_path, name)
    assert load(path, column="meta.use.len").lengths.tolist() == LENGTHS
    with pytest.raises(InputError, match=r"meta\.use\.no|cannot be read \(No match"):
        load(path, column="meta.use.no")
    with pytest.raises(InputError, match=r"no column 'mta\.len'"):
        load(path, column="mta.len")


def test_a_column_whose_own_name_has_a_dot_wins(tmp_path):
    (tmp_path / "a.csv").write_text("meta.len,length\n5,1\n70,2\n900,3\n")
    assert load(tmp_path / "a.csv", column="meta.len").lengths.tolist() == LENGTHS
    (tmp_path / "a.jsonl").write_text('{"meta": {"len": 1}, "meta.len": 5}\n')
    assert load(tmp_path / "a.jsonl", column="meta.len").lengths.tolist() == [5]


def test_a_folder_of_shards_is_one_dataset_in_their_order(tmp_path):
    for i, lengths in enumerate(([5], [70, 900], [1])):
        pq.write_table(pa.table({"length": lengths}), tmp_path / f"train-{i:05}-of-00003.parquet")
    assert load(tmp_path).lengths.tolist() == [*LENGTHS, 1]
    pq.write_table(pa.table({"length": [1]}), tmp_path / "test-00000-of-00001.parquet")
    with pytest.raises(InputError, match="holds test, train, which are not one dataset; name one file"):
        load(tmp_path)


def test_a_file_for_each_step_keeps_steps_and_groups_apart(tmp_path):
    """As verl numbers them: step 10 comes after step 9, and prompts are other groups in another step."""
    for step in (9, 10):
        rows = [{"length": step * 10 + i, "step": step, "uid": "ab"[i // 2]} for i in range(4)]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = load(tmp_path)
    assert trace.lengths.tolist() == [90, 91, 92, 93, 100, 101, 102, 103]
    assert trace.step.tolist() == [9] * 4 + [10] * 4
    assert trace.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_files_of_different_columns_are_not_one_dataset(tmp_path):
    (tmp_path / "1.jsonl").write_text('{"length": 5, "step": 1}\n')
    (tmp_path / "2.jsonl").write_text('{"length": 5}\n')
    with pytest.raises(InputError, match="holds files of different columns"):
        load(tmp_path)


STEPS = "step,loss,tokens,seconds\n1,2.5,65536,1.5\n2,2.25,64000,1.4\n"


def test_tokens_of_steps_are_no_lengths(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(STEPS)
    with pytest.raises(InputError, match=r"'tokens' has a row for each step, beside 'seconds'.*'odcsim fit'"):
        load(path)
    path.write_text('{"step": 1, "num_tokens": 9, "grad_norm": 0.5}\n{"step": 2, "num_tokens": 19, "grad_norm": 0.5}\n')
    with pytest.raises(InputError, match="'odcsim fit'"):
        load(path.rename(tmp_path / "log.jsonl"))


def test_samples_of_a_step_are_lengths_whatever_is_beside_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("step,tokens,seconds\n1,5,1.5\n1,70,1.5\n2,900,1.4\n")
    assert load(path).lengths.tolist() == LENGTHS
    path.write_text("step,tokens\n1,5\n2,70\n3,900\n")  # a step of one sample: nothing says that it is a log
    assert load(path).lengths.tolist() == LENGTHS


def test_verls_own_log_is_of_means(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 1, "data": {"response_length/mean": 512.5, "perf/total_num_tokens": 9}}\n')
    with pytest.raises(InputError, match=r"verl's log of steps.*rollout_data_dir with --tokenizer"):
        load(path)
