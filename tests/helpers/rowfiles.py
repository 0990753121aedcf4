"""The same rows in every kind of file that lengths, texts and tokens come in."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = ["a.csv", "a.tsv", "a.jsonl", "a.json", "columns.json"]
ARROWS = ["a.parquet", "a.arrow", "a.feather.arrow", "saved"]
ARRAYS = ["a.npy", "a.npz"]
FILES = [*TEXTS, *ARROWS, *ARRAYS, "shards"]
NESTED = ["a.jsonl", "a.json", "columns.json", *ARROWS]  # which hold lists, too


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """By its name. `saved` is a folder as `save_to_disk` leaves it, `shards` one of two CSVs."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    kind = path.suffix.removeprefix(".") or path.name
    if kind in ("csv", "tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, delimiter="," if kind == "csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(columns if path.stem == "columns" else rows), encoding="utf-8")
    elif kind == "parquet":
        pq.write_table(pa.table(columns), path, row_group_size=3)
    elif kind == "arrow":
        opened = pa.ipc.new_file if path.stem.endswith("feather") else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, opened(sink, pa.table(columns).schema) as writer:
            writer.write_table(pa.table(columns), max_chunksize=2)
    elif kind == "npy":
        values = [tuple(math.nan if value is None else value for value in row.values()) for row in rows]
        np.save(path, np.array(values, dtype=[(name, float) for name in names]))
    elif kind == "npz":
        np.savez(path, **{name: np.array(column, float) for name, column in columns.items()})
    else:
        path.mkdir(parents=True)
        half, end = (len(rows) + 1) // 2, "arrow" if kind == "saved" else "csv"
        parts = [f"part-{number}.{end}" for number in (0, 1)]
        for part, some in zip(parts, (rows[:half], rows[half:]), strict=True):
            write(path / part, some)
        if kind == "saved":
            (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": part} for part in parts]}))
    return path
