"""Writing lengths, and what is known beside them, to a file in the format that its suffix says."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.tally import SIDES
from odcsim.support.outputs import replacing
from odcsim.trace import PAIR, Trace

Columns = Mapping[str, NDArray[np.int64]]
NAMES = {"lengths": "length", "loss": "loss", "group": "prompt_id", "step": "step", "counts": "count"}


def columns(trace: Trace) -> Columns:
    """All that a trace holds, under names by which it is read again. A pair is a row."""
    every = {name: values for own, name in NAMES.items() if (values := getattr(trace, own)) is not None}
    if trace.unit != PAIR:
        return every
    own = trace.lengths if trace.loss is None else trace.loss
    prompt = {} if trace.loss is None else {"prompt_length": (trace.lengths - trace.loss)[::SIDES]}
    sides = {f"{side}_length": own[i::SIDES] for i, side in enumerate(("chosen", "rejected"))}
    return prompt | sides | {name: every[name][::SIDES] for name in ("prompt_id", "step") if name in every}


def save(columns: Columns, path: Path) -> None:
    """Columns of one length, in the format that the suffix says."""
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputError(
            f"cannot tell the format from '{path.suffix}'", where=str(path), fix=f"known: {', '.join(WRITERS)}"
        )
    with replacing(path) as file:
        writer(columns, file)


def _csv(columns: Columns, file: BinaryIO) -> None:
    file.write(f"{','.join(columns)}\n".encode())
    _lines(columns, file, ",".join(["{}"] * len(columns)) + "\n")


def _jsonl(columns: Columns, file: BinaryIO) -> None:
    form = ", ".join(f'"{name}": {{}}' for name in columns)
    _lines(columns, file, f"{{{{{form}}}}}\n")


def _lines(columns: Columns, file: BinaryIO, form: str) -> None:
    """In blocks, so that memory follows the lengths and not their text."""
    for start in range(0, max(map(len, columns.values())), 1_000_000):
        block = [values[start : start + 1_000_000].tolist() for values in columns.values()]
        file.write("".join(map(form.format, *block)).encode())


def _npy(columns: Columns, file: BinaryIO) -> None:
    """Named fields where there is more than lengths."""
    values = list(columns.values())
    kind = [(name, np.int64) for name in columns]
    table = values[0] if len(values) == 1 else np.rec.fromarrays(values, kind).view(np.ndarray)
    np.save(file, table, allow_pickle=False)


def _parquet(columns: Columns, file: BinaryIO) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow", fix="install it with: pip install 'odcsim[data]'") from None
    parquet.write_table(pyarrow.table(dict(columns)), file)


WRITERS: dict[str, Callable[[Columns, BinaryIO], None]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".npy": _npy,
    ".parquet": _parquet,
}
