"""A log of training steps: how many steps each row stands for, how long they took, and how many tokens they held.

Trainers log what they will: seconds of a step or a clock; tokens of a step, since the run began, or in a second. What a
log does not say is said.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from odcsim.errors import InputError
from odcsim.fitting.step_files import LoggedRow, rows_of
from odcsim.measurements import timed
from odcsim.neighbours.logs import BY_HAND, CLOCKS, TRACKED, LogKeys, key_of, keys_of
from odcsim.support.values import LARGEST, shown

UNTIMED = (
    "log the seconds of each step (Hugging Face's Trainer: --include_num_input_tokens_seen non_padding), or give the "
    "throughput of the run with --measured-tokens-per-second"
)


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
    held: tuple[str, str]  # (`tokens`, `seen` or `rate`, the log's name of it)
    apart: str  # seconds in the clock that are no training

    @property
    def read(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (self.step, self.timed[1], self.held[1]) if name))


def read_steps(paths: Sequence[str], devices: int) -> StepLog:
    """`devices`: of the run, where a log tells what one of them does."""
    rows = rows_of(paths)
    keys = _keys(rows, paths[0])
    _check(rows, keys)
    whole = [row for row in rows if all(name in row.values for name in keys.read)]
    apart = [
        (row.values[keys.step], row.values[keys.apart]) for row in rows if {keys.step, keys.apart} <= {*row.values}
    ]
    every = (_made(before, row, keys, devices, apart) for before, row in pairwise(whole))
    steps = [step for step in every if step is not None]
    if not steps or keys.timed[0] != "clock":  # the first row has no row before it
        steps = [*_first(whole, keys, devices, apart, alone=not steps), *steps]
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
    held = _found(("tokens", "seen", "rate"), by, names)
    clocks = [key_of([clock], often) for clock in (*by.clock, *BY_HAND.clock, *CLOCKS)]
    clock = max((name for name in clocks if name is not None), key=lambda name: often[name], default=None)
    timed_by = _found(("seconds",), by, names) or (("clock", clock) if clock else None)
    rate = key_of((*by.rate, *BY_HAND.rate), names)
    if timed_by is None and rate is not None and held is not None and held[0] != "rate":
        timed_by = ("rate", rate)
    if timed_by is None:
        raise InputError(f"no column of step seconds among {', '.join(names[:8])}", where=where, fix=UNTIMED)
    return _Keys(by, step, timed_by, held or ("", ""), key_of(by.apart, names) or "")


def _found(ways: Sequence[str], by: LogKeys, names: list[str]) -> tuple[str, str] | None:
    every = ((way, key_of(getattr(one, way), names)) for one in (by, BY_HAND) for way in ways)
    return next(((way, name) for way, name in every if name is not None), None)


def _check(rows: list[LoggedRow], keys: _Keys) -> None:
    """Every row says numbers where it says something: the first that does not is named, and all are counted."""
    wrong = [(row.where, *fault) for row in rows if (fault := _fault(row, keys)) is not None]
    if wrong:
        where, problem, fix = wrong[0]
        of = f"{len(wrong):,} of {len(rows):,} rows are bad, the first: {problem}" if len(wrong) > 1 else problem
        raise InputError(of, where=where, fix=fix)


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
    whole: list[LoggedRow], keys: _Keys, devices: int, apart: list[tuple[float, float]], *, alone: bool
) -> list[LoggedStep]:
    """What the first row says by itself. `alone`: it is all there is, and a run's own clock began at zero."""
    if not whole:
        return []
    last = whole[-1]
    if keys.timed[0] == "clock":
        own = key_of(keys.by.clock, [keys.timed[1]]) is not None
        before = LoggedRow(dict.fromkeys(last.values, 0.0), last.where) if alone and own else None
        made = None if before is None else _made(before, last, keys, devices, apart)
    elif "seen" in (keys.held[0], keys.timed[0]):
        return []
    else:
        before = LoggedRow({**whole[0].values, keys.step: whole[0].values[keys.step] - 1}, "")
        made = _made(before, whole[0], keys, devices, apart)
    return [] if made is None else [made]


def _made(
    before: LoggedRow, row: LoggedRow, keys: _Keys, devices: int, apart: list[tuple[float, float]]
) -> LoggedStep | None:
    """What came since the row before. None where that is no step, as where a run began anew."""
    then, now = before.values[keys.step], row.values[keys.step]
    steps, all_devices = int(now - then), devices if keys.by.per_device else 1
    if steps < 1:
        return None

    def since(way: tuple[str, str]) -> float:
        return row.values[way[1]] - before.values[way[1]]

    def told(way: tuple[str, str]) -> float:
        return row.values[way[1]]

    amounts: dict[str, Callable[[float], float]] = {
        "tokens": lambda _: steps * told(keys.held),
        "seen": lambda _: since(keys.held),
        "rate": lambda seconds: seconds * told(keys.held) * all_devices,
    }
    times: dict[str, Callable[[], float]] = {
        "seconds": lambda: steps * told(keys.timed),
        "clock": lambda: since(keys.timed) - sum(seconds for step, seconds in apart if then <= step < now),
        "rate": lambda: amounts[keys.held[0]](0.0) / max(told(keys.timed) * all_devices, 1e-9),
    }
    seconds = times[keys.timed[0]]()
    tokens = amounts[keys.held[0]](seconds) if keys.held[0] else None
    known = timed(seconds) and (tokens is None or tokens >= 1)
    return LoggedStep(int(now), steps, seconds, tokens) if known else None


def _lacks(keys: _Keys, rows: int) -> tuple[str, ...]:
    lacks = []
    if not keys.held[0]:
        lacks.append("tokens of steps: each is taken to hold what is drawn")
    if rows == 1:
        lacks.append("seconds of single steps: loading, saving and slow first steps are in the mean of all")
    elif keys.timed[0] == "clock":
        lacks.append(f"seconds of steps: they are differences of '{keys.timed[1]}', so that loading is in them")
    if keys.held[0] and key_of(keys.by.padded, [keys.held[1]]) is not None:
        lacks.append(f"whether '{keys.held[1]}' counts padding, which is no work of these lengths")
    return tuple(lacks)
