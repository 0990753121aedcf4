"""How many times as long as the others each rank takes for equal work, and what a microbatch takes at the usual pace.

A device that others wait for is either slow or had more to do. Equal kernels tell the two apart; so do seconds held
against what microbatches hold; and where nobody knows what they held, only what persists over all steps can be blamed
on a device.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from odcsim.decide.diagnosis.microbatches import ComputedTable, Rows, expected
from odcsim.timeline import Floats, Ints

CLEAR = math.log(1.03)  # nearer to the others a rank is called alike ...
CHANCE = 0.01  # ... and so is one that is no further off than some rank is this often where all are alike
LEAST_ERROR = 0.005  # of one kind of kernel, whose neighbors on a device may differ
LEAST_STEPS = 4  # below it microbatches are compared one by one
ROUNDS = 30  # of telling paces and seconds of equal work apart ...
SETTLED = 1e-4  # ... unless they change by less than this
KERNELS, LENGTHS, PERSISTS = "equal kernels", "what microbatches hold", "differences that persist"


@dataclass(frozen=True, slots=True)
class Paces:
    """By rank. 1: as fast as the others, or not clearly otherwise."""

    times: Mapping[int, float]
    errors: Mapping[int, float]  # standard errors of their logarithms
    told: str = ""  # by what
    usual: Floats | None = None  # seconds of every microbatch of the table at the usual pace

    @property
    def uneven(self) -> bool:
        return any(times != 1.0 for times in self.times.values())


def paces_of(
    table: ComputedTable, ranks: tuple[int, ...], alike: Mapping[str, Mapping[int, float]], chosen: Floats | None = None
) -> Paces:
    """Of the ranks in order. `chosen`: seconds to fit instead of the table's; what is 0 is left out of it."""
    seconds = table.seconds if chosen is None else chosen
    rows = seconds > 0
    # Kinds of work that all did, where there are any.
    common = [[of[rank] for rank in ranks] for of in alike.values() if all(of.get(rank, 0.0) > 0 for rank in ranks)]
    if common and len(ranks) > 1:
        times, errors = _clear(ranks, np.log(np.array(common)), LEAST_ERROR)
        return Paces(times, errors, KERNELS, _usual(table, seconds, rows, times))
    usual = _usual(table, seconds, rows, dict.fromkeys(ranks, 1.0))
    if usual is None:
        late = _persisting(ranks, table, seconds)
        times, errors = _clear(ranks, late)
        return Paces(times, errors, PERSISTS if len(late) else "")
    late = np.log(np.where(rows, seconds, 1.0) / _freed(table, ranks, seconds, rows, usual))
    groups = table.steps
    if len(np.unique(groups)) < LEAST_STEPS:  # microbatch by microbatch
        groups = table.steps * (int(table.numbers.max(initial=0)) + 1) + table.numbers
    times, errors = _clear(ranks, _medians(ranks, table, groups, late, rows))
    return Paces(times, errors, LENGTHS, _usual(table, seconds, rows, times))


def _freed(table: ComputedTable, ranks: tuple[int, ...], seconds: Floats, rows: Rows, usual: Floats) -> Floats:
    """Seconds of equal work that no rank's pace is in: each has one, clear or not, until none changes any more.

    What a slow rank's microbatches hold could else be taken for the reason why they take long.
    """
    factors = dict.fromkeys(ranks, 0.0)
    for _ in range(ROUNDS):
        late = _medians(ranks, table, np.zeros_like(table.steps), np.log(np.where(rows, seconds, 1.0) / usual), rows)[0]
        known = np.sort(late[~np.isnan(late)])
        apart = np.nan_to_num(late - known[(len(known) - 1) // 2])
        changed = max(abs(new - old) for new, old in zip(apart, factors.values(), strict=True))
        factors = dict(zip(ranks, apart.tolist(), strict=True))
        again = _usual(table, seconds, rows, {rank: math.exp(factor) for rank, factor in factors.items()})
        if changed < SETTLED or again is None:
            break
        usual = again
    return usual


def _usual(table: ComputedTable, seconds: Floats, rows: Rows, times: Mapping[int, float]) -> Floats | None:
    slow = np.array([times.get(rank, 1.0) for rank in table.ranks.tolist()])
    return expected(table, seconds / slow, rows)


def _persisting(ranks: tuple[int, ...], table: ComputedTable, seconds: Floats) -> Floats:
    """Logarithms of each rank's compute, [step, rank]; none of few steps."""
    owners = np.searchsorted(ranks, table.ranks)
    steps, places = np.unique(table.steps, return_inverse=True)
    if len(steps) < LEAST_STEPS:
        return np.empty((0, len(ranks)))
    sums = np.bincount(places * len(ranks) + owners, seconds, len(steps) * len(ranks)).reshape(len(steps), -1)
    return np.log(sums[(sums > 0).all(axis=1)])


def _medians(ranks: tuple[int, ...], table: ComputedTable, groups: Ints, late: Floats, rows: Rows) -> Floats:
    """[group, rank], where a rank has any in it; else not a number."""
    owners = np.searchsorted(ranks, table.ranks)
    every, places = np.unique(groups, return_inverse=True)
    medians = np.full((len(every), len(ranks)), np.nan)
    order = np.lexsort((late, owners, places))[: len(late)]
    order = order[rows[order]]
    cells = (places * len(ranks) + owners)[order]
    first = np.flatnonzero(np.r_[True, cells[1:] != cells[:-1]]) if len(cells) else np.empty(0, dtype=int)
    count = np.diff(np.r_[first, len(cells)])
    low, high = order[first + (count - 1) // 2], order[first + count // 2]
    medians.ravel()[cells[first]] = (late[low] + late[high]) / 2
    return medians


def _clear(ranks: tuple[int, ...], late: Floats, least: float = 0.0) -> tuple[dict[int, float], dict[int, float]]:
    """Paces against a rank in the middle, of two the quicker one: those that are clearly apart from it."""
    times, errors = dict.fromkeys(ranks, 1.0), dict.fromkeys(ranks, 0.0)
    usual = np.array([np.median(of[~np.isnan(of)]) if (~np.isnan(of)).any() else np.nan for of in late.T])
    known = np.flatnonzero(~np.isnan(usual))
    if len(known) < 2:
        return times, errors
    middle = known[np.argsort(usual[known], kind="stable")[(len(known) - 1) // 2]]
    for place in known:
        off, error, quantile = _apart(late[:, place], late[:, middle], least, len(known))
        errors[ranks[place]] = error
        if abs(off) > max(CLEAR, quantile * error):
            times[ranks[place]] = math.exp(off)
    return times, errors


def _apart(own: Floats, middle: Floats, least: float, ranks: int) -> tuple[float, float, float]:
    """How far apart two ranks are, the standard error, and how many of those chance makes of it."""
    from scipy.special import stdtrit

    gaps = own - middle
    gaps = gaps[~np.isnan(gaps)]
    if len(gaps) < 2 - bool(least):
        return 0.0, 0.0, 1.0
    n = len(gaps)
    scatter = float(gaps.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    free = max(n - 1, LEAST_STEPS if least else 1)
    return float(np.median(gaps)), max(scatter, least), float(-stdtrit(free, CHANCE / 2 / ranks))
