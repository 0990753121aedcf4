"""Which samples have an image: the same answer from every format, and one line where a row does not say."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odcsim.errors import InputError
from odcsim.reading import load
from odcsim.reading.images import images

HAS = [True, False, False, True, True]
COUNTS = [2, 0, 0, 1, 7]


def lines(values, comma=","):
    return f"length{comma}images\n" + "".join(f"{i + 5}{comma}{value}\n" for i, value in enumerate(values))


def objects(values):
    return [{"length": i + 5, "images": value} for i, value in enumerate(values)]


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


TEXTS = {
    "counts.csv": lines(COUNTS),
    "words.csv": lines(["true", "False", " false", "TRUE", '"true"']),
    "floats.csv": lines([f"{count}.0" for count in COUNTS]),
    "semicolons.csv": lines(COUNTS, ";"),
    "tabs.tsv": lines(COUNTS, "\t"),
    "flags.jsonl": jsonl(objects(HAS)),
    "counts.json": json.dumps(objects(COUNTS)),
    "columns.json": json.dumps({"length": [5] * 5, "images": HAS}),
}


def written(folder, kind):
    path = folder / kind
    if kind in TEXTS:
        path.write_text(TEXTS[kind])
    elif kind == "packed.csv.gz":
        path.write_bytes(gzip.compress(TEXTS["words.csv"].encode()))
    elif kind == "arrays.npz":
        np.savez(path, length=np.arange(5) + 5, images=np.array(HAS))
    elif kind == "flags.parquet":
        pq.write_table(pa.table({"length": [5] * 5, "images": HAS}), path)
    else:
        path.mkdir()
        (path / "part-0.csv").write_text(lines(COUNTS[:2]))
        (path / "part-1.csv").write_text(lines(COUNTS[2:]))
    return str(path)


@pytest.mark.parametrize("kind", [*TEXTS, "packed.csv.gz", "arrays.npz", "flags.parquet", "shards"])
def test_every_format_says_the_same(tmp_path, kind):
    path = written(tmp_path, kind)
    assert images(path, "images", load(path)).tolist() == HAS


def test_a_field_inside_one(tmp_path):
    (tmp_path / "a.jsonl").write_text(jsonl({"length": 5, "meta": {"images": count}} for count in COUNTS))
    path = str(tmp_path / "a.jsonl")
    assert images(path, "meta.images", load(path)).tolist() == HAS


@pytest.mark.parametrize("value", ["", "yes", -1, 0.5, "nan", "1e9", "2" * 5000])
def test_a_field_that_does_not_say_is_refused_at_its_place(tmp_path, value):
    (tmp_path / "a.csv").write_text(lines([1, 0, value]))
    path = str(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"a\.csv:4: column 'images' holds .{1,45}; it takes true, false, or how many"):
        images(path, "images", load(path))


@pytest.mark.parametrize("value", [None, [], {"a": 1}, float("nan"), "some"])
def test_a_value_that_does_not_say_is_refused_at_its_place(tmp_path, value):
    (tmp_path / "a.jsonl").write_text(jsonl(objects([1, value])))
    path = str(tmp_path / "a.jsonl")
    with pytest.raises(InputError, match=r"a\.jsonl:2: column 'images' holds .*; it takes true, false, or how many"):
        images(path, "images", load(path))


def test_a_table_whose_rows_are_no_samples_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("q,length,images\n0,1,1\n0.5,9,0\n1,50,1\n")
    path = str(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"has 3 rows for \d+ lengths; give one row per sample"):
        images(path, "images", load(path))
