"""NPY, NPZ and Parquet. Their decoders raise nearly anything on damaged bytes: all of it means one thing to a user."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.memory import MemoryTable, of_columns
from odcsim.reading.table import Table


def open_numpy(path: Path) -> Table:
    """Arrays of numbers; one of objects would have to be unpickled, which can run code, and is refused."""
    with path.open("rb") as file:  # numpy leaves a damaged archive open where it opens the file itself
        columns = _decoded(path, lambda: _arrays(np.load(file, allow_pickle=False)))
    return of_columns(path, columns)


def _arrays(loaded: Any) -> dict[str, Any]:
    """Columns by name: the fields of a structured array, the members of an archive, or the only array."""
    if isinstance(loaded, np.ndarray):
        return {name: loaded[name] for name in loaded.dtype.names} if loaded.dtype.names else {"length": loaded}
    columns = {name: loaded[name] for name in loaded.files}
    return {"length": columns["arr_0"]} if list(columns) == ["arr_0"] else columns


def open_parquet(path: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow", where=str(path), fix="install it with: pip install 'odcsim[data]'"
        ) from None
    names = _decoded(path, lambda: parquet.ParquetFile(path).schema_arrow.names)
    return MemoryTable(path, list(names), lambda name: _decoded(path, lambda: _column(path, name)))


def _column(path: Path, name: str) -> Any:
    from pyarrow import parquet, types

    table = parquet.ParquetFile(path).read(columns=[name], use_threads=False)
    column = table.column(name)
    if column.null_count == 0 and (types.is_integer(column.type) or types.is_floating(column.type)):
        return column.to_numpy()
    return column.to_pylist()


def _decoded(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "pickle" in reason.lower():
            reason = "an array of objects, or no NPY at all"
        raise InputError(
            f"cannot be read ({reason[:120]})", where=str(path), fix="check that the file is whole and of numbers"
        ) from None
