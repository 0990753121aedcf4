"""NPY, NPZ and Megatron's index. Decoders raise nearly anything on damaged bytes: all of it is one thing to users."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.memory import of_columns
from odcsim.reading.table import Table


def open_numpy(path: Path) -> Table:
    """Arrays of numbers; one of objects would have to be unpickled, which can run code, and is refused."""
    with path.open("rb") as file:  # numpy leaves a damaged archive open where it opens the file itself
        columns = decoded(path, lambda: _arrays(np.load(file, allow_pickle=False)))
    return of_columns(path, columns)


def _arrays(loaded: Any) -> dict[str, Any]:
    """Columns by name: the fields of a structured array, the members of an archive, or the only array."""
    if isinstance(loaded, np.ndarray):
        return {name: loaded[name] for name in loaded.dtype.names} if loaded.dtype.names else {"length": loaded}
    columns = {name: loaded[name] for name in loaded.files}
    return {"length": columns["arr_0"]} if list(columns) == ["arr_0"] else columns


MEGATRON = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")  # magic, version, code of the tokens' type, sequences, documents + 1


def open_megatron(path: Path) -> Table:
    """The `.idx` beside a `.bin` of tokens holds the length of every sequence, right behind its head."""
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        magic, version, _, count, _ = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0, 0, 0)
        if magic != MEGATRON or version != 1:
            raise InputError("is no index of Megatron's, version 1", where=str(path), fix="name the .idx beside a .bin")
        if _HEAD.size + 4 * count > path.stat().st_size:
            raise InputError(f"is cut short of its {count:,} lengths", where=str(path), fix="copy the file again")
        return of_columns(path, {"length": np.fromfile(file, np.dtype("<i4"), count)})


def decoded(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "pickle" in reason.lower():
            reason = "an array of objects, or no NPY at all"
        raise InputError(
            f"cannot be read ({reason[:120]})", where=str(path), fix="check that the file is whole and of numbers"
        ) from None
