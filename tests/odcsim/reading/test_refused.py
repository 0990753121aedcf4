"""What is no trace is refused where it stands; what is said of more of the like is in tests/approved/reading.txt."""

import gzip
import json
import struct

import numpy as np
import pytest
from rowfiles import write

from odcsim import InputError, load
from odcsim.reading.images import images
from odcsim.support import inputs

BIG = 2**31
FILES = [  # name, content, and the line that the error names, where it names one
    ("a.csv", "", 0), ("a.csv", "\n \n", 0), ("a.csv", "prompt,response\n\n", 0), ("a.csv", "length\n5\nabc\n", 3),
    ("a.csv", "length\n5\n-5\n", 3), ("a.csv", "id,length\nx,5\nx,1.5\n", 3), ("a.csv", "length\nnan\n", 2),
    ("a.txt", "3\ninf\n", 2), ("a.csv", f"length\n{BIG}\n", 2), ("a.csv", f"prompt,response\n{BIG - 1},1\n", 2),
    ("a.csv", "length,id\n5,1\n6\n", 3), ("a.csv", "id,length\nx,5\nx,5,6\n", 3), ("a.csv", b"length\n5\n\x00\n", 3),
    ("a.csv", 'length,id\n5,"a\nb,c\nd",6\n', 4), ("a.csv", "id,length\rx,5\rx,5,6\r", 3),
    ("a.csv", "length,name\n5,x\n6,é\n".encode("latin-1"), 3),
    *[("a.csv", f'length\n5\n"{value}"\n', 3) for value in ("3,33", "3337,1", "33,37", ",337", "3,3377")],
    ("a.jsonl", '{"length": 5, "loss": 5}\n7', 2), ("a.jsonl", '\n{"length": true}', 2),
    ("a.jsonl", '{"length": NaN}', 1), ("a.jsonl", "\n1\n\n-1", 4), ("a.jsonl", "1" + "0" * 400, 1),
    ("a.jsonl", "[" * 100_000, 1), ("a.json", "[" * 100_000, 0), ("a.jsonl", "\n", 0),
    ("a.json", '[{"length": 1}, {"len": 1}]', "row 2"),
    ("a.json", '{"length": [[1, 2], [3], "x"], "other": [[[1]], 2, 3]}', "row 3"),
    ("a.npy", b"\x93NUMPY\x01\x00", 0), ("a.npz", b"PK\x03\x04 not a zip", 0), ("a.parquet", b"PAR1 cut off", 0),
    ("a.csv.gz", b"", 0), ("a.csv.gz", gzip.compress(b"length\n5\n70\n900\n", mtime=0)[:-9], 0),
    ("a.csv.gz", gzip.compress(b"length\n5\nx\n"), 3),
    # tables of counts and of quantiles, and logs of steps
    ("a.csv", "length,count\n5,-1\n", 2), ("a.csv", "length,count\n5,0.5\n", 2),
    ("a.csv", "length,count\n5,99999999999999999\n", 2), ("a.csv", "q,length\n0,5\nnan,6\n1,7\n", 3),
    ("a.csv", "q,length,count\n0,5,1\n", 0),
    ("a.jsonl", '{"step": 1, "num_tokens": 9, "grad_norm": 0.5}\n{"step": 2, "num_tokens": 19, "grad_norm": 0.5}\n', 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "at"), FILES, ids=[f"{i}-{name}" for i, (name, *_) in enumerate(FILES)])
def test_files(tmp_path, name, content, at):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        load(tmp_path / name)
    assert caught.value.where == f"{tmp_path / name}{f', {at}' if isinstance(at, str) else f':{at}' if at else ''}"
    assert "\n" not in str(caught.value)


def test_arrays(tmp_path):
    """Also of unlike lengths, in whatever pieces they are read."""
    for values in ([1, 0], [1.0, float("nan")], [True, False], [[1], [2]], 3, [], ["a"], [{"x": 1}], [1, None]):
        np.save(tmp_path / "a.npy", np.array(values), allow_pickle=True)
        with pytest.raises(InputError):
            load(tmp_path / "a.npy")
    for steps in (1, 3, 5, 70_000):
        np.savez(tmp_path / "a.npz", length=np.ones(4, int), step=np.ones(steps, int))
        with pytest.raises(InputError):
            load(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "saved"])
def test_a_missing_value_is_known_by_its_row_and_a_cut_file_by_itself(tmp_path, name):
    for lists in (False, True):
        (folder := tmp_path / str(lists)).mkdir()
        rows = [{"input_ids": n and [n]} if lists else {"length": n} for n in (1, None, 2, 3)]
        path = write(folder / name, rows)
        with pytest.raises(InputError) as caught:
            load(path)
        assert caught.value.where.endswith(", row 2")
    if name != "saved":
        content = write(tmp_path / name, [{"length": n} for n in range(1, 5000)]).read_bytes()
        for size in (1, 100, len(content) // 2, len(content) - 200):
            (tmp_path / name).write_bytes(content[:size])
            with pytest.raises(InputError) as caught:
                load(tmp_path / name)
            assert caught.value.where == str(tmp_path / name)


def index(lengths, version=1, magic=b"MMIDIDX\x00\x00", count=None):
    """Megatron's, of so many lengths."""
    head = magic + struct.pack("<QBQQ", version, 8, len(lengths) if count is None else count, len(lengths) + 1)
    rest = [np.array(lengths, np.int32), np.zeros(len(lengths), np.int64), np.arange(len(lengths) + 1, dtype=np.int64)]
    return head + b"".join(one.tobytes() for one in rest)


def test_an_index_of_megatron(tmp_path):
    (tmp_path / "a.idx").write_bytes(index([5, 70, 900]))
    assert load(tmp_path / "a.idx").lengths.tolist() == [5, 70, 900]
    tnt = b"TNTIDX\x00\x00\x00"
    wrong = [index([5, 70])[:40], index([5])[:20], index([5], 2), index([5], 1, tnt), index([-1])]
    wrong.append(index([], count=2**62))
    for content in wrong:
        (tmp_path / "a.idx").write_bytes(content)
        with pytest.raises(InputError):
            load(tmp_path / "a.idx")


STATES = ["{", "[]", '{"_data_files": []}', '{"_data_files": [{"filename": "../a.arrow"}]}', '{"_data_files": [{}]}']


def test_a_saved_dataset_without_its_state(tmp_path):
    path = write(tmp_path / "saved", [{"length": 5}] * 3)
    for state in STATES:
        (path / "state.json").write_text(state)
        with pytest.raises(InputError):
            load(path)


def test_folders_and_names(tmp_path, monkeypatch):
    """Splits, files of other columns, none, a name of nothing, and of something else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "both").mkdir()
    write(tmp_path / "saved", [{"length": 5}] * 3).rename(tmp_path / "both" / "train")
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert load(tmp_path / "both" / "train").size == 3
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "1.jsonl").write_text('{"length": 5, "step": 1}\n')
    (tmp_path / "mixed" / "2.jsonl").write_text('{"length": 5}\n')
    (tmp_path / "none").mkdir()
    for name, words in (("both", {}), ("mixed", {}), ("none", {}), ("fixed:length=3", {"column": "length"}), ("", {})):
        with pytest.raises(InputError):
            load(f"{name}/" if name and (tmp_path / name).is_dir() else name, **words)


SPECS = [
    "lognormal:median=5", "lognormal:median=5,sigma=1,spike=0.1", "lognormal:median=5,sigma=1,max=9,spike=2",
    "lognormal:median=nan,sigma=1", "fixed:length", "fixed:length=0", "fixed:length=3,samples=0",
    "fixed:length=3,seed=-1", "exponential:mean=9,min=9,max=30", "gamma:mean=5",
]  # fmt: skip


def test_specs():
    for spec in SPECS:
        with pytest.raises(InputError):
            load(spec)


IMAGES = [
    *[("a.csv", f"length,images\n5,1\n6,0\n7,{value}\n", ":4")
      for value in ("", "yes", -1, 0.5, "nan", "1e9", "2" * 5000)],
    *[("a.jsonl", "\n".join(json.dumps({"length": 5, "images": v}) for v in (1, value)), ":2")
      for value in (None, [], {"a": 1}, float("nan"), "some")],
    ("a.csv", "q,length,images\n0,1,1\n0.5,9,0\n1,50,1\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "at"), IMAGES)
def test_images(tmp_path, name, content, at):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        images(str(tmp_path / name), "images", load(tmp_path / name))
    assert caught.value.where == f"{tmp_path / name}{at}"
    assert len(caught.value.problem) < 80


def test_a_bomb_is_left_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "SPARE", 1 << 10)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1\n" * (1 << 22)))
    with pytest.raises(InputError):
        load(tmp_path / "a.csv.gz")
