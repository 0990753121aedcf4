"""Counts are kept where a user's caches belong, by the content of what was counted; never in the way.

What cannot be written is counted anew next time; what cannot be read was never there.
"""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.faults import Fault
from odcsim.support.outputs import replacing

VERSION = 4  # of the way of counting


class RowTokens(NamedTuple):
    """Tokens of every row, none of a bad one, and of those the loss's where they are known. `faults`: the first bad
    rows."""

    lengths: NDArray[np.int64]
    loss: NDArray[np.int64] | None
    faults: tuple[Fault, ...] = ()


def folder() -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "odcsim" / "lengths"


def key(files: Iterable[Path], *request: object) -> str:
    """Of all bytes of the files, and of what is asked of them."""
    sha = hashlib.sha256(repr((VERSION, *request)).encode())
    for file in files:
        with file.open("rb") as opened:
            sha.update(hashlib.file_digest(opened, "sha256").digest())
    return sha.hexdigest()


def recall(name: str) -> RowTokens | None:
    with suppress(Exception), (folder() / f"{name}.npz").open("rb") as file:  # a damaged one raises nearly anything
        arrays = np.load(file, allow_pickle=False)
        lengths, loss = arrays["lengths"], arrays["loss"]
        faults = tuple(Fault(int(row), str(problem), str(fix)) for row, problem, fix in arrays["faults"].tolist())
        if lengths.dtype == np.int64 and loss.dtype == np.int64 and len(loss) in (0, len(lengths)):
            return RowTokens(lengths, loss if len(loss) else None, faults)
    return None


def keep(name: str, tokens: RowTokens) -> None:
    lengths, loss, faults = tokens
    with suppress(OSError, InputError, RuntimeError):  # there may be no home, either
        folder().mkdir(parents=True, exist_ok=True)
        with replacing(folder() / f"{name}.npz") as file:
            texts = np.array(faults, str).reshape(-1, len(Fault._fields))
            np.savez(file, lengths=lengths, loss=np.array([], np.int64) if loss is None else loss, faults=texts)
