"""A folder of files that are one dataset: shards of it, or rollouts with a file for each step (verl's, TRL's)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.tally import Tally
from odcsim.trace import Trace

Numbers = NDArray[np.int64]
KINDS = (".parquet", ".jsonl", ".csv", ".arrow")
NUMBER = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?$")
BESIDE = {"step": "a step or group", "group": "a step or group", "bundle": "another side"}
DIGITS = re.compile(r"(\d+)")


def shards(folder: Path) -> list[Path]:
    """The files in the order of their numbers; none where the folder holds no files of one kind."""
    files = [path for path in folder.iterdir() if path.suffix.lower() in KINDS and not path.name.startswith(".")]
    if len({path.suffix.lower() for path in files}) != 1:
        return []
    names = sorted({NUMBER.sub("", path.stem) for path in files})
    if len(names) > 1:
        fix = "name one file, or give each of them a folder"
        raise InputError(f"holds {', '.join(names[:6])}, which are not one dataset", where=str(folder), fix=fix)
    return sorted(files, key=lambda path: [(int(p) if p.isdigit() else -1, p) for p in DIGITS.split(path.name)])


def join(folder: Path, files: Sequence[Path], read: Callable[[Path], Trace | None]) -> Trace | None:
    """One trace of all files that hold one. A prompt that comes again in another file makes another group."""
    parts = (part for part in map(read, files) if part is not None)
    if (first := next(parts, None)) is None:
        return None
    tally = Tally(str(folder))
    tally.beside = next((words for name, words in BESIDE.items() if getattr(first, name) is not None), "")
    groups, bundles, steps = list[Numbers](), list[Numbers](), list[Numbers]()
    drawn, size, folded = 0, 0, False
    for part in chain([first], parts):
        if any((getattr(part, name) is None) != (getattr(first, name) is None) for name in ("loss", *BESIDE)):
            raise InputError("holds files of different columns", where=str(folder), fix="name one file")
        tally.add(part.lengths, part.loss, part.counts)
        tally.rows += part.size - len(part.lengths)
        for pieces, piece in ((groups, part.group), (bundles, part.bundle), (steps, part.step)):
            if piece is not None:
                pieces.append(piece)
        drawn, size = drawn + part.drawn_from, size + part.bundles.population
        folded |= part.folded
    origin = f"{len(files)} files of {folder.name}, {files[0].name} to {files[-1].name}; {first.origin}"
    trace = tally.trace(folder.name, origin, _count_on(groups), np.concatenate(steps) if steps else None)
    whole, folded = size if drawn else 0, folded or trace.folded
    return replace(trace, drawn_from=whole, folded=folded, bundle=_count_on(bundles), unit=first.unit)


def _count_on(pieces: list[Numbers]) -> Numbers | None:
    """Groups of several files, each counted on from those before."""
    every, offset = [], 0
    for piece in pieces:
        every.append(np.unique(piece, return_inverse=True)[1] + offset)
        offset = int(every[-1].max()) + 1
    return np.concatenate(every) if every else None
