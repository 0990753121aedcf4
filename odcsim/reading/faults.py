"""Rows that are no sample: counted in whatever files they stand, the first named, and left out if that is asked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.trace import Trace

NAMED = 6  # rows; the rest are counted
NOTHING = "no row is left without them"
MISSING = object()  # where a row has no such key


class Fault(NamedTuple):
    """What is wrong with a row, and the way out."""

    row: int
    problem: str
    fix: str


@dataclass(frozen=True, slots=True)
class Check:
    """Which rows of a piece break a rule, and of one that does the problem and the way out."""

    wrong: NDArray[np.bool_]
    explain: Callable[[int], tuple[str, str]]


def sift(checks: Sequence[Check]) -> tuple[NDArray[np.bool_], list[Fault]]:
    """Which rows break none of them, and of the first that do, what each breaks first."""
    wrong = checks[0].wrong if len(checks) == 1 else np.any([check.wrong for check in checks], axis=0)
    faults = []
    for row in np.flatnonzero(wrong)[:NAMED].tolist():
        problem, fix = next(check.explain(row) for check in checks if check.wrong[row])
        faults.append(Fault(row, problem, fix))
    return ~wrong, faults


def check_labels(name: str, values: Iterable[object]) -> Check:
    """That rows say something in a column of steps or groups: a row in which one is blank belongs to none."""
    given = list(values)  # which a piece has in memory, and nothing else of each row

    def absent(value: object) -> bool:
        return value is MISSING or isinstance(value, InputError)

    def blank(value: object) -> bool:
        return not value.strip() if isinstance(value, str) else value is None or absent(value) or value != value

    def explain(row: int) -> tuple[str, str]:
        if absent(given[row]):
            return wrong(name, given[row])
        return f"column '{name}' holds nothing", "say it in every row, or rename the column"

    return Check(np.fromiter(map(blank, given), np.bool_, len(given)), explain)


def wrong(column: str, value: object) -> tuple[str, str]:
    """What is said of a value that is no number, and the way out."""
    if isinstance(value, InputError):
        return value.problem, value.fix
    if value is MISSING:
        return f"has no '{column}'", "give every row the same keys"
    return f"column '{column}' holds {shown(value)}", "it takes whole numbers"


def shown(value: object) -> str:
    """A value in an error's line, short."""
    if isinstance(value, str | bytes):
        value = value[:100]
    text = f"{len(value):,} values" if isinstance(value, list | dict) and len(value) > 100 else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


class NoneLeft(InputError):
    """Every row of a file is bad."""


@dataclass(slots=True)
class BadRows:
    """Of all `rows` that were read, of one file or several, `count` are bad. `skip`: they are left out."""

    skip: bool = False
    rows: int = 0
    count: int = 0
    first: list[tuple[Path, str, Fault]] = field(default_factory=list)  # the file, where in it
    spent: list[Path] = field(default_factory=list)  # files of which no row is left

    def add(self, path: Path, good: NDArray[np.bool_], faults: Iterable[Fault], place: Callable[[int], str]) -> None:
        """Another piece of a file: which of its rows are good, and what is wrong with the first of the rest."""
        self.rows += len(good)
        self.count += len(good) - int(good.sum())
        for fault in faults:
            if len(self.first) < NAMED:
                self.first.append((path, place(fault.row).removeprefix(str(path)), fault))

    def left_out(self, trace: Trace) -> Trace:
        """A trace without them, which says so."""
        if not self.count:
            return trace
        words = f"{self.count:,} of {self.rows:,} rows left out: {self._list()}"
        if self.spent:
            more = f" and {len(self.spent) - NAMED:,} more" if len(self.spent) > NAMED else ""
            words += f"; no row is left of {', '.join(path.name for path in self.spent[:NAMED])}{more}"
        return replace(trace, origin=f"{trace.origin}; {words}" if trace.origin else words, left_out=words)

    def refusal(self, where: Path) -> NoneLeft:
        """Of them all; where they are left out, because nothing but them is there."""
        if self.count == 1:
            [(path, at, (_, problem, fix))] = self.first
            way = f"{fix}, or leave it out with --skip-bad" if fix else "leave it out with --skip-bad"
            return NoneLeft(problem, where=f"{path}{at}", fix=NOTHING if self.skip else way)
        problem = f"{self.count:,} of {self.rows:,} rows are bad: {self._list()}"
        fix = NOTHING if self.skip else "mend them, or leave them out with --skip-bad"
        return NoneLeft(problem, where=str(where), fix=fix)

    def _list(self) -> str:
        """The first ones by their places, those that are bad in one way together."""
        paths = {path for path, _, _ in self.first}
        names = [path.name + at if len(paths) > 1 else at.split(" ")[-1].lstrip(":") for path, at, _ in self.first]
        both = groupby(zip(names, self.first, strict=True), lambda pair: pair[1][2].problem)
        words = ", ".join(f"{', '.join(name for name, _ in same)} ({problem})" for problem, same in both)
        unit = ("row" if "row" in self.first[0][1] else "line") + ("s" if len(names) > 1 else "")
        more = f" and {self.count - len(names):,} more" if self.count > len(names) else ""
        return f"{words}{more}" if len(paths) > 1 else f"{unit} {words}{more}"
