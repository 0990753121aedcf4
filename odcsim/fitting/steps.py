"""A log of training steps: how many steps each row stands for, how long they took, and how many tokens they held.

Trainers log what they will: seconds of a step or a clock; tokens of a step, since the run began, or in a second. What a
log does not say is said.

Files are told apart by what is in them: a trainer_state.json, a JSON list, JSON lines, and CSV files, of which
TensorBoard writes one for each scalar.
"""

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.measurements import timed
from odcsim.neighbours.logs import BY_HAND, CLOCKS, TRACKED, LogKeys, key_of, keys_of
from odcsim.support.inputs import LINES, read_text, reading
from odcsim.support.numbers import number
from odcsim.support.values import LARGEST, shown

HISTORY = "log_history"  # of Hugging Face's trainer_state.json
TENSORBOARD = ["wall time", "step", "value"]
TAG = re.compile(r"-tag-(.+?)(?: ?\(\d+\))?\.csv$", re.IGNORECASE)  # of a file as TensorBoard names it
SMOOTHED = ("__MIN", "__MAX")  # columns that W&B adds to each of its own
LINED = re.compile(r"\}\s*\n\s*\{")  # an object on each line
EXPECTED = "a log of steps: trainer_state.json, JSON lines, or CSV with columns of step, seconds and tokens"
UNTIMED = (
    "log the seconds of each step (Hugging Face's Trainer: --include_num_input_tokens_seen non_padding), or give the "
    "throughput of the run with --measured-tokens-per-second"
)


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """What one row says in numbers, and where it stands."""

    values: Mapping[str, float]
    where: str
    texts: Mapping[str, str] = field(default_factory=dict)  # what is no number


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A row: so many steps up to this one, what they took and held together."""

    step: int
    steps: int
    seconds: float
    tokens: float | None


@dataclass(frozen=True, slots=True)
class StepLog:
    """The steps of a log, who logged them, and by which of its keys."""

    by: LogKeys
    steps: tuple[LoggedStep, ...]
    keys: tuple[str, ...]  # that were read
    lacks: tuple[str, ...] = ()  # what the log does not say, in words


@dataclass(frozen=True, slots=True)
class _Keys:
    """By what a log tells the steps, the seconds and the tokens of a row. Empty: by nothing."""

    by: LogKeys
    step: str
    timed: tuple[str, str]  # (`seconds`, `clock` or `rate`, the log's name of it)
    amount: tuple[str, str]  # (`tokens`, `seen` or `rate`, the log's name of it)
    apart: str  # seconds in the clock that are no training

    @property
    def read(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (self.step, self.timed[1], self.amount[1]) if name))


def read_steps(paths: Sequence[str], devices: int) -> StepLog:
    """`devices`: of the run, where a log tells what one of them does."""
    rows = rows_of(paths)
    keys = _keys(rows, paths[0])
    # Every row says numbers where it says something: the first that does not is named, and all are counted.
    wrong = [(row.where, *fault) for row in rows if (fault := _fault(row, keys)) is not None]
    if wrong:
        where, problem, fix = wrong[0]
        of = f"{len(wrong):,} of {len(rows):,} rows are bad, the first: {problem}" if len(wrong) > 1 else problem
        raise InputError(of, where=where, fix=fix)
    complete = [row for row in rows if all(name in row.values for name in keys.read)]
    apart = [
        (row.values[keys.step], row.values[keys.apart]) for row in rows if {keys.step, keys.apart} <= {*row.values}
    ]
    every = (_step_since(before, row, keys, devices, apart) for before, row in pairwise(complete))
    steps = [step for step in every if step is not None]
    if not steps or keys.timed[0] != "clock":  # the first row has no row before it
        steps = [*_first(complete, keys, devices, apart, alone=not steps), *steps]
    if not steps:
        fix = "expected two rows at least: the first says where the clock begins"
        raise InputError("no step has its seconds", where=paths[0], fix=fix)
    return StepLog(keys.by, tuple(steps), keys.read, _lacks(keys, len(steps)))


def _keys(rows: list[LoggedRow], where: str) -> _Keys:
    """By the trainer's own names, and by plain ones where it has none; of clocks by the one of most rows."""
    often = Counter(name for row in rows for name in row.values)
    names = list(dict.fromkeys([*often, *(name for row in rows for name in row.texts)]))
    by = keys_of(names)
    step = key_of((*by.step, *TRACKED), names)
    if step is None:
        raise InputError(
            f"no column of step numbers among {', '.join(names[:8])}", where=where, fix="expected a column 'step'"
        )
    amount = _key_of(("tokens", "seen", "rate"), by, names)
    clocks = [key_of([clock], often) for clock in (*by.clock, *BY_HAND.clock, *CLOCKS)]
    clock = max((name for name in clocks if name is not None), key=lambda name: often[name], default=None)
    timed_by = _key_of(("seconds",), by, names) or (("clock", clock) if clock else None)
    rate = key_of((*by.rate, *BY_HAND.rate), names)
    if timed_by is None and rate is not None and amount is not None and amount[0] != "rate":
        timed_by = ("rate", rate)
    if timed_by is None:
        raise InputError(f"no column of step seconds among {', '.join(names[:8])}", where=where, fix=UNTIMED)
    return _Keys(by, step, timed_by, amount or ("", ""), key_of(by.apart, names) or "")


def _key_of(ways: Sequence[str], by: LogKeys, names: list[str]) -> tuple[str, str] | None:
    every = ((way, key_of(getattr(one, way), names)) for one in (by, BY_HAND) for way in ways)
    return next(((way, name) for way, name in every if name is not None), None)


def _fault(row: LoggedRow, keys: _Keys) -> tuple[str, str] | None:
    for name in keys.read:
        expected = f"expected {'a whole number from 0' if name == keys.step else 'a number from 0'}"
        value = row.values.get(name, 0.0)
        if name in row.texts:
            return f"{name} is {shown(row.texts[name])}", expected
        if not 0 <= value <= LARGEST or (name == keys.step and value != int(value)):
            return f"{name} is {value:g}", expected
    return None


def _first(
    rows: list[LoggedRow], keys: _Keys, devices: int, apart: list[tuple[float, float]], *, alone: bool
) -> list[LoggedStep]:
    """What the first row says by itself. `alone`: it is all there is, and a run's own clock began at zero."""
    if not rows:
        return []
    last = rows[-1]
    if keys.timed[0] == "clock":
        own = key_of(keys.by.clock, [keys.timed[1]]) is not None
        before = LoggedRow(dict.fromkeys(last.values, 0.0), last.where) if alone and own else None
        step = None if before is None else _step_since(before, last, keys, devices, apart)
    elif "seen" in (keys.amount[0], keys.timed[0]):
        return []
    else:
        before = LoggedRow({**rows[0].values, keys.step: rows[0].values[keys.step] - 1}, "")
        step = _step_since(before, rows[0], keys, devices, apart)
    return [] if step is None else [step]


def _step_since(
    before: LoggedRow, row: LoggedRow, keys: _Keys, devices: int, apart: list[tuple[float, float]]
) -> LoggedStep | None:
    """What came since the row before. None where that is no step, as where a run began anew."""
    then, now = before.values[keys.step], row.values[keys.step]
    steps, all_devices = int(now - then), devices if keys.by.per_device else 1
    if steps < 1:
        return None

    def since(way: tuple[str, str]) -> float:
        return row.values[way[1]] - before.values[way[1]]

    def here(way: tuple[str, str]) -> float:
        return row.values[way[1]]

    amounts: dict[str, Callable[[float], float]] = {
        "tokens": lambda _: steps * here(keys.amount),
        "seen": lambda _: since(keys.amount),
        "rate": lambda seconds: seconds * here(keys.amount) * all_devices,
    }
    times: dict[str, Callable[[], float]] = {
        "seconds": lambda: steps * here(keys.timed),
        "clock": lambda: since(keys.timed) - sum(seconds for step, seconds in apart if then <= step < now),
        "rate": lambda: amounts[keys.amount[0]](0.0) / max(here(keys.timed) * all_devices, 1e-9),
    }
    seconds = times[keys.timed[0]]()
    tokens = amounts[keys.amount[0]](seconds) if keys.amount[0] else None
    known = timed(seconds) and (tokens is None or tokens >= 1)
    return LoggedStep(int(now), steps, seconds, tokens) if known else None


def _lacks(keys: _Keys, rows: int) -> tuple[str, ...]:
    lacks = []
    if not keys.amount[0]:
        lacks.append("tokens of steps: each is taken to hold what is drawn")
    if rows == 1:
        lacks.append("seconds of single steps: loading, saving and slow first steps are in the mean of all")
    elif keys.timed[0] == "clock":
        lacks.append(f"seconds of steps: they are differences of '{keys.timed[1]}', so that loading is in them")
    if keys.amount[0] and key_of(keys.by.padded, [keys.amount[1]]) is not None:
        lacks.append(f"whether '{keys.amount[1]}' counts padding, which is no work of these lengths")
    return tuple(lacks)


def rows_of(paths: Sequence[str]) -> list[LoggedRow]:
    """Of one file, or of TensorBoard's, of which each holds a scalar."""
    every = [_rows(Path(path)) for path in paths]
    if len(every) == 1:
        return every[0]
    if odd := [path for path, rows in zip(paths, every, strict=True) if not rows or "wall time" not in rows[0].values]:
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
        content = []
        for i, line in enumerate(text.splitlines(), 1):
            try:
                content += [json.loads(line)] if line.strip() else []
            except json.JSONDecodeError as error:
                problem, fix = f"is not JSON ({error.msg})", "expected an object on each line"
                raise InputError(problem, where=f"{path}:{i}", fix=fix) from None
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


def _csv(text: str, path: Path) -> Iterator[LoggedRow]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    names = [name.strip() for name in next(rows, [])]
    if [name.lower() for name in names] == TENSORBOARD:
        names = ["wall time", "step", tag[1] if (tag := TAG.search(path.name)) else path.stem]
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
            amount = number(value) if isinstance(value, str) else float(value)
        except (ValueError, OverflowError):
            texts[name] = str(value)
            continue
        if math.isfinite(amount):
            values[name] = amount
    return LoggedRow(values, where, texts)
