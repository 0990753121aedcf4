"""A folder of files that are one dataset: shards of it, or rollouts with a file for each step (verl's, TRL's)."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.trace import Trace

KINDS = (".parquet", ".jsonl", ".csv", ".arrow")
NUMBER = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?$")
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
    return sorted(files, key=_by_number)


def joined(folder: Path, files: Sequence[Path], read: Callable[[Path], Trace]) -> Trace:
    """One trace of all files. A prompt that comes again in another file makes another group."""
    parts = [read(file) for file in files]
    if len({_kind(part) for part in parts}) > 1 or parts[0].counts is not None:
        raise InputError("holds files of different columns, or of counts", where=str(folder), fix="name one file")
    group, offset = [], 0
    for part in parts:
        if part.group is not None:
            group.append(np.unique(part.group, return_inverse=True)[1] + offset)
            offset = int(group[-1].max()) + 1
    origin = f"{len(files)} files of {folder.name}, {files[0].name} to {files[-1].name}; {parts[0].origin}"
    lengths = np.concatenate([part.lengths for part in parts])
    drawn_from = sum(part.drawn_from or part.size for part in parts) if any(p.drawn_from for p in parts) else 0
    loss, step = (_all(parts, name) for name in ("loss", "step"))
    return Trace(folder.name, lengths, None, loss, np.concatenate(group) if group else None, step, origin, drawn_from)


def _all(parts: Sequence[Trace], name: str) -> NDArray[np.int64] | None:
    values = [getattr(part, name) for part in parts]
    return None if values[0] is None else np.concatenate(values)


def _kind(part: Trace) -> tuple[bool, ...]:
    return tuple(getattr(part, name) is None for name in ("counts", "loss", "group", "step"))


def _by_number(path: Path) -> list[tuple[int, str]]:
    return [(int(piece) if piece.isdigit() else -1, piece) for piece in DIGITS.split(path.name)]
