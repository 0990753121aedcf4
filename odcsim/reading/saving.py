"""Writing lengths to a file, in the format that its suffix says."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.support.files import replacing

Lengths = NDArray[np.int64]


def save(lengths: Lengths, path: Path) -> None:
    """One column `length`, in the format that the suffix says."""
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputError(
            f"cannot tell the format from '{path.suffix}'", where=str(path), fix=f"known: {', '.join(WRITERS)}"
        )
    with replacing(path) as file:
        writer(lengths, file)


def _csv(lengths: Lengths, file: BinaryIO) -> None:
    file.write(b"length\n")
    _lines(lengths, file, "{}\n")


def _jsonl(lengths: Lengths, file: BinaryIO) -> None:
    _lines(lengths, file, '{{"length": {}}}\n')


def _lines(lengths: Lengths, file: BinaryIO, form: str) -> None:
    """In blocks, so that memory follows the lengths and not their text."""
    for start in range(0, len(lengths), 1_000_000):
        file.write("".join(map(form.format, lengths[start : start + 1_000_000].tolist())).encode())


def _npy(lengths: Lengths, file: BinaryIO) -> None:
    np.save(file, lengths, allow_pickle=False)


def _parquet(lengths: Lengths, file: BinaryIO) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow", fix="install it with: pip install 'odcsim[data]'") from None
    parquet.write_table(pyarrow.table({"length": lengths}), file)


WRITERS: dict[str, Callable[[Lengths, BinaryIO], None]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".npy": _npy,
    ".parquet": _parquet,
}
