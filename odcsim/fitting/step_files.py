"""Files that hold a log of steps, whatever wrote them: rows of what was logged, by the names in the file.

Told apart by what is in them: a trainer_state.json, a JSON list, JSON lines, and CSV files, of which TensorBoard writes
one for each scalar.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.support.inputs import LINES, read_text, reading
from odcsim.support.numbers import number
from odcsim.support.values import shown

HISTORY = "log_history"  # of Hugging Face's trainer_state.json
TENSORBOARD = ["wall time", "step", "value"]
TAG = re.compile(r"-tag-(.+?)(?: ?\(\d+\))?\.csv$", re.IGNORECASE)  # of a file as TensorBoard names it
SMOOTHED = ("__MIN", "__MAX")  # columns that W&B adds to each of its own
LINED = re.compile(r"\}\s*\n\s*\{")  # an object on each line
EXPECTED = "a log of steps: trainer_state.json, JSON lines, or CSV with columns of step, seconds and tokens"


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """What one row says in numbers, and where it stands."""

    values: Mapping[str, float]
    where: str
    texts: Mapping[str, str] = field(default_factory=dict)  # what is no number


def rows_of(paths: Sequence[str]) -> list[LoggedRow]:
    """Of one file, or of TensorBoard's, of which each holds a scalar."""
    every = [_rows(Path(path)) for path in paths]
    if len(every) == 1:
        return every[0]
    if odd := [path for path, rows in zip(paths, every, strict=True) if not _is_scalar(rows)]:
        raise InputError("several log files", where=odd[0], fix="only TensorBoard's CSV files can be several")
    steps: dict[float, LoggedRow] = {}
    for row in (row for rows in every for row in rows):
        if (step := row.values.get("step")) is None:
            raise InputError("has no step", where=row.where, fix="expected a whole number from 0")
        before = steps.get(step)
        steps[step] = row if before is None else replace(before, values={**row.values, **before.values})
    return [steps[step] for step in sorted(steps)]


def holds_steps(path: Path) -> bool:
    """Whether a file is a log of steps, and neither measurements nor a log of microbatches with their lengths."""
    with reading(path, csv.Error, missing="give a log, measurements or traces", expected=EXPECTED):
        text = read_text(path, LINES, "utf-8-sig").strip()
        if text.startswith("{") and path.suffix.lower() == ".json":
            return f'"{HISTORY}"' in text or LINED.search(text) is not None
        names = [] if text[:1] in ("[", "{") else next(csv.reader(io.StringIO(text, newline="")), [])
    return bool(text) and "lengths" not in [name.strip().lower() for name in names]


def _is_scalar(rows: list[LoggedRow]) -> bool:
    return bool(rows) and "wall time" in rows[0].values


def _rows(path: Path) -> list[LoggedRow]:
    with reading(path, csv.Error, missing="give a log of steps", expected=EXPECTED):
        text = read_text(path, LINES, "utf-8-sig").strip()
        said = list(_json(text, path) if text[:1] in ("{", "[") else _csv(text, path))
    rows = [row for row in said if row.values or row.texts]
    if not any(row.values for row in rows):
        raise InputError("holds no numbers", where=str(path), fix=f"expected {EXPECTED}")
    return rows


def _json(text: str, path: Path) -> Iterator[LoggedRow]:
    try:
        content: Any = json.loads(text)
    except json.JSONDecodeError:
        content = [_line(line, f"{path}:{i}") for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if isinstance(content, dict):
        content = content.get(HISTORY, [content])
    if not isinstance(content, list):
        raise InputError(f"{HISTORY} is {shown(content)}", where=str(path), fix=f"expected {EXPECTED}")
    for i, row in enumerate(content, 1):
        where = f"{path}: row {i}"
        if not isinstance(row, dict):
            raise InputError(f"holds {shown(row)}", where=where, fix="expected an object for each step")
        inner = row.get("data")  # verl's own files have all but the step there
        flat = {**row, **inner} if isinstance(inner, dict) else row
        yield _row(flat.items(), where)


def _line(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON ({error.msg})", where=where, fix="expected an object on each line") from None


def _csv(text: str, path: Path) -> Iterator[LoggedRow]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    names = [name.strip() for name in next(rows, [])]
    if [name.lower() for name in names] == TENSORBOARD:
        names = ["wall time", "step", found[1] if (found := TAG.search(path.name)) else path.stem]
    kept = [i for i, name in enumerate(names) if name and not name.endswith(SMOOTHED)]
    for row in rows:
        where = f"{path}:{rows.line_num}"
        if row and len(row) != len(names):
            raise InputError(
                f"has {len(row)} columns of {len(names)}", where=where, fix="give as many as the first row"
            )
        yield _row([(names[i], row[i]) for i in kept if row], where)


def _row(pairs: Iterable[tuple[str, Any]], where: str) -> LoggedRow:
    """Lists and what was not logged in this row are left out."""
    values, texts = {}, {}
    for name, value in pairs:
        if isinstance(value, bool) or not isinstance(value, int | float | str) or not str(value).strip():
            continue
        try:
            found = number(value) if isinstance(value, str) else float(value)
        except (ValueError, OverflowError):
            texts[name] = str(value)
            continue
        if math.isfinite(found):
            values[name] = found
    return LoggedRow(values, where, texts)
