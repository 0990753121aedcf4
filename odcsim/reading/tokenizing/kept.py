"""Counts are kept where a user's caches belong, by the content of what was counted; never in the way.

What cannot be written is counted anew next time; what cannot be read was never there.
"""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.bad import Fault
from odcsim.reading.tokenizing.counting import RowTokens
from odcsim.support.files import replacing

VERSION = 4  # of the way of counting


def folder() -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "odcsim" / "lengths"


def key(files: Iterable[Path], *asked: object) -> str:
    """Of all bytes of the files, and of what was asked of them."""
    sha = hashlib.sha256(repr((VERSION, *asked)).encode())
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


def keep(name: str, counted: RowTokens) -> None:
    lengths, loss, faults = counted
    with suppress(OSError, InputError, RuntimeError):  # there may be no home, either
        folder().mkdir(parents=True, exist_ok=True)
        with replacing(folder() / f"{name}.npz") as file:
            told = np.array(faults, str).reshape(-1, len(Fault._fields))
            np.savez(file, lengths=lengths, loss=np.array([], np.int64) if loss is None else loss, faults=told)
