"""Which samples have an image, by a column beside their lengths that counts images or says true or false."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading import named, specs, unpack
from odcsim.reading.arrow import is_saved
from odcsim.reading.faults import shown
from odcsim.reading.formats import open_table
from odcsim.reading.roles import column_named
from odcsim.reading.shards import shards
from odcsim.support import budget
from odcsim.trace import Trace

WORDS = {"true": True, "false": False}
COUNT = re.compile(r"(\d{1,15})(?:\.0*)?", re.ASCII)  # pandas writes 1.0 where a row has none


def images(source: str, column: str, trace: Trace) -> NDArray[np.bool_]:
    """For each row of the file that the trace was read from, whether it has any."""
    if specs.kind_of(source) or named.find(source):
        raise InputError(f"'{source}' has no columns to choose from", fix="leave out --images")
    if source == unpack.PIPE:
        raise InputError("a pipe is read once, and --images reads it again", where="stdin", fix="save it to a file")
    with unpack.plain(Path(source)) as file, budget.bounded(source):
        parts = shards(file) if file.is_dir() and not is_saved(file) else [file]
        every = np.concatenate([_of(part, column) for part in parts])
    if len(every) != len(trace.lengths):
        problem = f"has {len(every):,} rows for {len(trace.lengths):,} lengths"
        raise InputError(problem, where=source, fix=f"give one row per sample, up to {budget.rows():,} of them")
    return every


def _of(path: Path, column: str) -> NDArray[np.bool_]:
    table, rows = open_table(path), bytearray()
    name = column_named(table.names, column, str(path))
    for row, value in enumerate(table.values(name)):
        text = str(value).strip().lower() if isinstance(value, bool | int | float | str) else ""
        if count := COUNT.fullmatch(text):
            rows.append(int(count[1]) > 0)
        elif text in WORDS:
            rows.append(WORDS[text])
        else:
            fix = "it takes true, false, or how many images the sample has"
            raise InputError(f"column '{name}' holds {shown(value)}", where=table.place(row), fix=fix)
    return np.frombuffer(rows, np.bool_)
