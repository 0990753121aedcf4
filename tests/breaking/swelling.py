"""Small files that hold very much, of every kind that commands read."""

import gzip
import io
import json
import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet

from odcsim.recipe import USUAL
from odcsim.timeline import About

MANY = 5_000_000


def write(names: Collection[str], folder: Path = Path()) -> None:
    """These files, and others that are made quickly."""
    for make in (_parquet, _arrow, _numpy, _json):
        make(folder)
    if {"lists.parquet", "wide.npz"} & {*names}:
        _lists(folder)
        _timeline(folder)


def _parquet(folder: Path) -> None:
    _packed(folder / "equal.parquet", {"length": np.full(MANY // 10, 512)}, 10)
    places = np.zeros(512, np.int32)
    text = pa.DictionaryArray.from_arrays(pa.array(places), pa.array(["x" * 1_000_000]))
    group = pa.table({"length": places + 1, "group": text, "text": text})
    parquet.write_table(group, folder / "groups.parquet", compression="zstd", store_schema=False)
    parquet.write_table(group.select(["text"]), folder / "texts.parquet", compression="zstd", store_schema=False)


def _lists(folder: Path) -> None:
    places = np.arange(0, 33 * 130_000, 130_000, dtype=np.int32)
    lists = pa.ListArray.from_arrays(places, np.ones(32 * 130_000, np.int64))
    _packed(folder / "lists.parquet", {"input_ids": lists}, 10)
    one = pa.ListArray.from_arrays(np.array([0, MANY], np.int32), np.ones(MANY, np.int64))
    _packed(folder / "row.parquet", {"input_ids": pa.concat_arrays([one] * 5)})
    _packed(folder / "page.parquet", {"prompt": pa.array(["x" * 300_000_000])}, use_dictionary=False)


def _packed(path: Path, columns: dict, times: int = 1, **how) -> None:
    table = pa.table(columns)
    with parquet.ParquetWriter(path, table.schema, compression="zstd", write_statistics=False, **how) as file:
        for _ in range(times):
            file.write_table(table)


def _arrow(folder: Path) -> None:
    rows, each = 600, 100_000
    zeros, many = np.zeros(rows, np.int32), np.full(rows, each, np.int32)
    views = pa.ListViewArray.from_arrays(zeros, many, np.ones(each, np.int32))
    deep = pa.ListViewArray.from_arrays(zeros, np.full(rows, rows, np.int32), views)
    schemas = {"views": {"input_ids": views, "labels": views}, "deep": {"length": deep}}
    for name, columns in (schemas | {"nulls": {"length": pa.nulls(MANY)}}).items():
        table, options = pa.table(columns), ipc.IpcWriteOptions(compression="zstd")
        with ipc.new_file(folder / f"{name}.arrow", table.schema, options=options) as to:
            to.write_table(table)


def _numpy(folder: Path) -> None:
    ones, head = np.ones(MANY, np.int32), io.BytesIO()
    np.lib.format.write_array_header_2_0(head, {"descr": "<i4", "fortran_order": False, "shape": (MANY,)})
    _zip(folder / "ones.npz", {"length": head.getvalue() + ones.tobytes()})
    _zip(folder / "steps.npz", {name: head.getvalue() + ones.tobytes() for name in ("length", "step")})
    _zip(folder / "head.npz", {"length": b"\x93NUMPY\x02\x00" + np.uint32(2**28).tobytes() + bytes(2**28)})


def _json(folder: Path) -> None:
    for name, before, many, after in (
        ("csv", b"length\n", b"12\n" * MANY, b""),
        ("header.csv", b"", b"a," * MANY, b""),
        ("old", b"", b"", b""),
        ("json", b"[", b"1," * (MANY // 2), b"1]"),
        ("columns.json", b'{"length": [', b"1000," * MANY, b"1]}"),
        ("nested.json", b'{"length": [', b"[]," * MANY, b"[]]}"),
        ("nested.jsonl", b"[", b"{}," * MANY, b"1]"),
    ):
        (folder / f"a.{name}.gz").write_bytes(gzip.compress(before + many + after, 6))
    kernel = json.dumps({"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1}) + ","
    step = json.dumps({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 5})
    for name, before in {"kernels": "", "other": '"more": [' + "[]," * 5_000_000 + "1],"}.items():
        many = 150_000 if not before else 1
        trace = "{" + before + '"traceEvents": [' + kernel * many + step + "]}"
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(trace.encode(), 6))
    (folder / "lengths.csv").write_text("step,lengths\n1,512\n")


def _timeline(folder: Path) -> None:
    about = About("analytic", USUAL, "lb-mini", "tiny", "0" * 16, "", "", False, 100, 1000)
    header = {"format": "odcsim timeline", "version": 1, **about.header(), "blocks": 1}
    of = {"header": np.array(json.dumps(header)), "0.shape": np.array([1, 1]), "0.steps": np.array("")}
    of |= {"0.minibatches": np.zeros(1, dtype=int), "0.counts": np.ones((1, 100), dtype=int)}
    wide = {name: np.zeros((1000, 100, 100)) for name in ("0.asked", "0.had")}
    np.savez_compressed(folder / "wide.npz", **of, **wide, samples=np.ones(1), tokens=np.ones(1))
    np.savez_compressed(folder / "words.npz", **(of | {"header": np.array("x" * 20_000_000)}))


def _zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
