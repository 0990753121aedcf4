"""Seconds of a user's own training steps: a CSV file with the lengths and the seconds of one microbatch in each row.

Nothing of our engine ran. What such a log cannot tell apart is said in the profile's notes.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcsim.errors import InputError
from odcsim.fit import FitReport, examine
from odcsim.measurements import Compute, Measurements
from odcsim.model import Model

FIX = "expected columns lengths (512;1024;77) and seconds, a row for each microbatch of one device"
MOST = 2**31  # tokens of a sample, as in schedules


@dataclass(frozen=True, slots=True)
class Log:
    """One row per microbatch: what it held, and how long its forward and backward took."""

    lengths: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]


def read_log(path: Path | str) -> Log:
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, strict=True)
            names = {name.strip().lower(): name for name in rows.fieldnames or () if name}
            if missing := [name for name in ("lengths", "seconds") if name not in names]:
                raise InputError(f"no column {' and '.join(missing)}", where=str(path), fix=FIX)
            found = [(_lengths(r[names["lengths"]], f"{path}:{rows.line_num}"), r, rows.line_num) for r in rows]
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix="give a CSV file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix=FIX) from None
    seconds = [_seconds(row[names["seconds"]], f"{path}:{line}") for _, row, line in found]
    if not seconds:
        raise InputError("holds no microbatch", where=str(path), fix=FIX)
    return Log(tuple(lengths for lengths, _, _ in found), tuple(seconds))


def fit_log(log: Log, model: Model, gpu: str, devices: int = 1, origin: str = "") -> FitReport:
    """A profile of whole microbatches. With several devices the seconds hold the transfers that were not hidden."""
    rows = []
    for lengths, seconds in zip(log.lengths, log.seconds, strict=True):
        squares = float(model.squares(np.array(lengths)).sum())
        rows.append(Compute("microbatch", sum(lengths), squares, seconds, max(lengths)))
    told = (
        "Fitted to whole microbatches and given to equal layers; matmul split 1:3 and attention 1:3.5 between forward "
        "and backward, as FLOPs with recompute are; the head is in the layers, the constant counts as overhead; "
        "optimizer and publishing are not in it."
    )
    if devices > 1:
        told += (
            f" Logged on {devices} devices: transfers inside the node that were not hidden are in it, and so is "
            "waiting for other devices, which no log of one device's seconds can tell apart."
        )
    where = f"{len(rows)} microbatches{f' of {origin}' if origin else ''}"
    found = Measurements(model.name, gpu, tuple(rows), hardware=where, notes=told)
    return examine(found, model.layers, transfers_included=devices > 1)


def _lengths(text: str | None, where: str) -> tuple[int, ...]:
    parts = [part.strip() for part in (text or "").strip(" []").replace(",", ";").split(";")]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= 10 and 0 < int(part) < MOST):
            raise InputError(f"lengths holds {part[:40]!r}", where=where, fix="whole numbers with ';' between them")
    return tuple(int(part) for part in parts)


def _seconds(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"seconds is {(text or '')[:40]!r}", where=where, fix="a number above zero")
    return value
