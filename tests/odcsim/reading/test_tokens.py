"""Data that is tokenized already: as long as its lists, with the loss that its labels and masks say."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.reading import load

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IDS = [[1, 2, 3], [4], [5, 6]]
LABELS = [[-100, 2, 3], [-100], [5, -100]]
MASK = [[0, 1, 1], [0], [1, 0]]
LOSS = [2, 0, 1]


def stream(path, table):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def saved(folder, table, shards=2):
    """As `save_to_disk` writes it."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{shards:05}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        start = i * len(table) // shards
        stream(folder / name, table.slice(start, (i + 1) * len(table) // shards - start))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def written(folder, kind, columns):
    table, path = pa.table(columns), folder / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=2)
    elif kind == "arrow":
        stream(path, table)
    elif kind == "feather.arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif kind == "json":
        path.write_text(json.dumps(table.to_pydict()))
    else:
        return saved(folder / "saved", table)
    return path


KINDS = pytest.mark.parametrize("kind", ["parquet", "arrow", "feather.arrow", "jsonl", "json", "folder"])


@KINDS
@pytest.mark.parametrize("loss", [{"labels": LABELS}, {"loss_mask": MASK}, {"assistant_masks": MASK}])
def test_lists_are_as_long_as_they_are(tmp_path, kind, loss):
    trace = load(written(tmp_path, kind, {"input_ids": IDS, "attention_mask": MASK, **loss}))
    assert trace.lengths.tolist() == [3, 1, 2]
    assert trace.loss.tolist() == LOSS


@KINDS
def test_what_is_no_list_keeps_its_meaning(tmp_path, kind):
    """Labels of classes are no labels of tokens; lengths that stand there are not counted anew."""
    path = written(
        tmp_path, kind, {"input_ids": IDS, "labels": [7, 0, 1], "length": [30, 10, 20], "prompt_id": ["a", "a", "b"]}
    )
    trace = load(path)
    assert (trace.lengths.tolist(), trace.loss, trace.group.tolist()) == ([30, 10, 20], None, [0, 0, 1])


@KINDS
def test_prompts_and_completions_in_tokens(tmp_path, kind):
    trace = load(written(tmp_path, kind, {"prompt_ids": IDS, "completion_ids": [[1], [1, 2], []]}))
    assert (trace.lengths.tolist(), trace.loss.tolist()) == ([4, 3, 2], [1, 2, 0])


@KINDS
def test_padding_is_seen_by_its_mask(tmp_path, kind):
    path = written(tmp_path, kind, {"input_ids": [[9, 9]] * 3, "attention_mask": [[1, 1], [1, 0], [1, 0]]})
    assert load(path, column="attention_mask").lengths.tolist() == [2, 1, 1]


@given(st.lists(st.lists(st.integers(-100, 5), min_size=1, max_size=6), min_size=1, max_size=12))
@settings(deadline=None, max_examples=30)
def test_lists_of_any_shape(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("a")
    for kind in ("parquet", "jsonl", "folder"):
        table = {"input_ids": pa.array(rows, pa.list_(pa.int64())), "labels": pa.array(rows, pa.large_list(pa.int64()))}
        trace = load(written(folder, kind, table))
        assert trace.lengths.tolist() == [len(row) for row in rows]
        assert trace.loss.tolist() == [sum(value != -100 for value in row) for row in rows]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "folder"])
def test_a_missing_list_is_told_by_its_row(tmp_path, kind):
    path = written(tmp_path, kind, {"input_ids": pa.array([[1], None, [2]], pa.list_(pa.int32()))})
    with pytest.raises(InputError, match="row 2: column 'input_ids' holds None"):
        load(path)


def test_splits_are_named(tmp_path):
    saved(tmp_path / "both" / "train", pa.table({"input_ids": IDS}))
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(InputError, match=r"holds the splits train; name one: .*train"):
        load(tmp_path / "both")
    assert load(tmp_path / "both" / "train").size == 3


@pytest.mark.parametrize(
    ("state", "message"),
    [("{", "cannot be read"), ("[]", "cannot be read"), ('{"_data_files": []}', "names no files"),
     ('{"_data_files": [{"filename": "../a.arrow"}]}', "has no a.arrow"), ('{"_data_files": [{}]}', "cannot be read")],
)  # fmt: skip
def test_a_broken_state_is_one_line(tmp_path, state, message):
    folder = saved(tmp_path / "saved", pa.table({"input_ids": IDS}))
    (folder / "state.json").write_text(state)
    with pytest.raises(InputError, match=message):
        load(folder)


def test_a_cut_stream_is_one_line(tmp_path):
    path = written(tmp_path, "arrow", {"input_ids": IDS})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="cannot be read"):
        load(path)


def index(lengths, version=1, magic=b"MMIDIDX\x00\x00"):
    head = magic + struct.pack("<QBQQ", version, 8, len(lengths), len(lengths) + 1)
    pointers, documents = np.zeros(len(lengths), np.int64), np.arange(len(lengths) + 1, dtype=np.int64)
    return head + np.array(lengths, np.int32).tobytes() + pointers.tobytes() + documents.tobytes()


def test_an_index_of_megatron(tmp_path):
    (tmp_path / "a.idx").write_bytes(index([5, 70, 900]))
    assert load(tmp_path / "a.idx").lengths.tolist() == [5, 70, 900]


@pytest.mark.parametrize(
    ("content", "message"),
    [(index([5, 70])[:40], "is cut short of its 2 lengths"), (index([5])[:20], "is not a Megatron index"),
     (index([5], version=2), "is not a Megatron index"),
     (index([5], magic=b"TNTIDX\x00\x00\x00"), "is not a Megatron index"),
     (b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2**62, 1), "is cut short"), (index([-1]), "holds -1")],
)  # fmt: skip
def test_what_is_no_index(tmp_path, content, message):
    (tmp_path / "a.idx").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "a.idx")


def test_ragged_columns_of_json_are_refused_in_a_line(tmp_path):
    (tmp_path / "a.json").write_text('{"length": [[1, 2], [3], "x"], "other": [[[1]], 2, 3]}')
    with pytest.raises(InputError, match="holds 'x'"):
        load(tmp_path / "a.json")
