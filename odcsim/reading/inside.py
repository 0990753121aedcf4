"""JSON inside columns of Parquet and Arrow is what it says: datasets writes so what is not alike from row to row."""

import json
from collections.abc import Callable
from typing import Any

NAME = "arrow.json"  # of the extension that says so
Reader = Callable[[Any], Any]


def said(batch: Any) -> list[dict[str, Any]]:
    """Rows of a piece of a table."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    readers = {field.name: reader for field in batch.schema if (reader := _reader(field))}
    for row in rows:
        row |= {name: read(row[name]) for name, read in readers.items()}
    return rows


def _reader(field: Any) -> Reader | None:
    """What makes values of it, where there is JSON in them."""
    from pyarrow import types

    kind = field.type
    if _is_json(field):
        return lambda text: None if text is None else json.loads(text)
    if types.is_struct(kind):
        readers = {inner.name: reader for inner in kind if (reader := _reader(inner))}
        return _of_object(readers) if readers else None
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return _of_list(reader) if listed and (reader := _reader(kind.value_field)) else None


def _is_json(field: Any) -> bool:
    """A pyarrow that does not know the extension leaves its name beside the field."""
    told = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    return NAME in (getattr(field.type, "extension_name", ""), told)


def _of_object(readers: dict[str, Reader]) -> Reader:
    return lambda value: (
        None if value is None else {**value, **{name: read(value[name]) for name, read in readers.items()}}
    )


def _of_list(read: Reader) -> Reader:
    return lambda values: None if values is None else [read(value) for value in values]
