"""Seconds of a user's own training steps: a CSV file with the lengths and the seconds of one microbatch in each row.

Nothing of our engine ran. What such a log cannot tell apart is said in the profile's notes.
"""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.fit import FitReport, examine
from odcsim.measurements import EXPECTED as SECONDS
from odcsim.measurements import Compute, Measurements, timed
from odcsim.model import Model
from odcsim.recipe import USUAL, Recipe
from odcsim.support.inputs import LINES, read_bytes, reading
from odcsim.support.values import Given

EXPECTED = "columns lengths (512;1024;77) and seconds, a row for each microbatch of one device"
MOST = 2**31  # tokens of a sample, as in schedules


@dataclass(frozen=True, slots=True)
class Log:
    """One row per microbatch: what it held, and how long its forward and backward took."""

    lengths: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]


def read_log(path: Path | str) -> Log:
    rows = _rows(Path(path), ("lengths", "seconds"), EXPECTED)
    if not rows:
        raise InputError("holds no microbatch", where=str(path), fix=f"expected {EXPECTED}")
    lengths, seconds = tuple(_lengths(row["lengths"], where) for where, row in rows), list[float]()
    for where, row in rows:
        try:
            value = float(row["seconds"])
        except ValueError:
            value = math.nan
        if not timed(value):
            Given("seconds", row["seconds"], where).refuse(SECONDS)
        seconds.append(value)
    return Log(lengths, tuple(seconds))


def read_lengths(path: Path | str, one: bool) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """What each step of each device held, microbatch by microbatch. With one device the column may be missing."""
    path, needed = Path(path), ("step", "lengths") if one else ("device", "step", "lengths")
    contents: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for where, row in _rows(path, needed, f"columns {', '.join(needed)}, a row for each microbatch"):
        key = (_number(row.get("device", "0"), "device", where), _number(row["step"], "step", where))
        contents.setdefault(key, []).append(_lengths(row["lengths"], where))
    return contents


def _rows(path: Path, needed: tuple[str, ...], expected: str) -> list[tuple[str, dict[str, str]]]:
    """Rows of a CSV file with their places; names of columns in lower case."""
    with reading(path, csv.Error, missing="give a CSV file", expected=expected):
        file = io.StringIO(read_bytes(path, LINES).decode("utf-8-sig"), newline="")
        rows = csv.DictReader(file, strict=True)
        names = [name.strip().lower() for name in rows.fieldnames or ()]
        if missing := [name for name in needed if name not in names]:
            raise InputError(f"no column {' and '.join(missing)}", where=str(path), fix=f"expected {expected}")
        rows.fieldnames = names
        return [(f"{path}:{rows.line_num}", {k: v or "" for k, v in row.items() if k}) for row in rows]


def fit_log(
    log: Log, model: Model, gpu: str, devices: int = 1, origin: str = "", *, recipe: Recipe = USUAL
) -> FitReport:
    """A profile of whole microbatches. With several devices the seconds hold the transfers that were not hidden."""
    rows = []
    for lengths, seconds in zip(log.lengths, log.seconds, strict=True):
        squares = float(model.squares(np.array(lengths)).sum())
        rows.append(Compute("microbatch", sum(lengths), squares, seconds, max(lengths)))
    notes = (
        f"Fitted to whole microbatches and given to equal layers, {split_in_words(recipe)}; the head is in the layers, "
        "the constant counts as compute; optimizer and publishing are not in it."
    )
    if devices > 1:
        notes += (
            f" Logged on {devices} devices: transfers inside the node that were not hidden are in it, and so is "
            "waiting for other devices, which no log of one device's seconds can tell apart."
        )
    where = f"{len(rows)} microbatches{f' of {origin}' if origin else ''}"
    measurements = Measurements(model.name, gpu, tuple(rows), hardware=where, notes=notes)
    return examine(measurements, model.layers, transfers_included=devices > 1, recipe=recipe, devices=devices)


def split_in_words(recipe: Recipe) -> str:
    """How seconds of both passes are split over them."""
    matmul, attention, counted = ("1:3", "1:3.5", "with") if recipe.recomputes else ("1:2", "1:2.5", "without")
    split = f"matmul split {matmul} and attention {attention} between forward and backward"
    return f"{split}, as FLOPs {counted} recompute are"


def _number(text: str, name: str, where: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal() and len(text) <= 12):
        Given(name, text, where).refuse("expected a whole number from 0")
    return int(text)


def _lengths(text: str, where: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.strip(" []").replace(",", ";").split(";")]
    for i, part in enumerate(parts):
        if not (part.isascii() and part.isdecimal() and len(part) <= 10 and 0 < int(part) < MOST):
            Given(f"lengths[{i}]", part, where).refuse("expected whole numbers with ';' between them")
    return tuple(int(part) for part in parts)
