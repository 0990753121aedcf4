"""Which samples have an image, by a column beside their lengths that counts images or says true or false."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading import named, specs, unpacked
from odcsim.reading.arrow import is_saved
from odcsim.reading.files import open_table
from odcsim.reading.memory import shown
from odcsim.reading.roles import column_named
from odcsim.reading.shards import shards
from odcsim.support import budget
from odcsim.trace import Trace

WORDS = {"true": True, "false": False}
COUNT = re.compile(r"(\d{1,15})(?:\.0*)?", re.ASCII)  # pandas writes 1.0 where a row has none


def images(source: str, column: str, trace: Trace) -> NDArray[np.bool_]:
    """For each row of the file that the trace was read from, whether it has any."""
    _check_readable_again(source)
    with unpacked.plain(Path(source)) as file, budget.bounded(source):
        parts = shards(file) if file.is_dir() and not is_saved(file) else [file]
        found = np.concatenate([_of(part, column) for part in parts])
    if len(found) != len(trace.lengths):
        problem = f"has {len(found):,} rows for {len(trace.lengths):,} lengths"
        raise InputError(problem, where=source, fix=f"give one row per sample, up to {budget.rows():,} of them")
    return found


def _check_readable_again(source: str) -> None:
    if specs.kind_of(source) or named.find(source):
        raise InputError(f"'{source}' has no columns to choose from", fix="leave out --images")
    if source == unpacked.PIPE:
        raise InputError("a pipe is read once, and --images reads it again", where="stdin", fix="save it to a file")


def _of(path: Path, column: str) -> NDArray[np.bool_]:
    table, found = open_table(path), bytearray()
    name = column_named(table.names, column, str(path))
    for row, value in enumerate(table.values(name)):
        has = _has(value)
        if has is None:
            fix = "it takes true, false, or how many images the sample has"
            raise InputError(f"column '{name}' holds {shown(value)}", where=table.place(row), fix=fix)
        found.append(has)
    return np.frombuffer(found, np.bool_)


def _has(value: object) -> bool | None:
    """None where it does not say."""
    text = str(value).strip().lower() if isinstance(value, bool | int | float | str) else ""
    count = COUNT.fullmatch(text)
    return WORDS.get(text) if count is None else int(count[1]) > 0
