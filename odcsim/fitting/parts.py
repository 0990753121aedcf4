"""The fit of one kind of compute or transfer: its coefficients, what it does not explain, and what is hardly known.

Repeats of a measurement are all fitted; a fit is judged by their median, so that one interrupted call is no reason to
distrust it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.robust import Solution, distinct, jitter, solve, stretch
from odcsim.measurements import KEPT, Compute, Measurements, Transfer
from odcsim.profile import Polynomial, Timing
from odcsim.timeline import Floats

WRONG = 0.10  # a fit that misses a measurement by more than this, and by more than noise can do, has not explained it
SIGMAS = 5.0
PASSES = ("forward", "backward")
SQUARED = (*PASSES, *(name + KEPT for name in PASSES), "microbatch")  # kinds that attend
TERMS = ("constant", "linear", "quadratic", "sample")


@dataclass(frozen=True, slots=True)
class Part:
    """The fit of one kind. `residuals` are those of the medians of repeats: fitted over measured, minus one."""

    name: str
    coefficients: Polynomial
    errors: Polynomial
    residuals: Floats
    unexplained: tuple[str, ...]
    doubts: tuple[str, ...]

    def line(self) -> str:
        """The fit in words."""
        size = np.abs(self.residuals)
        terms = [
            f"{term} {getattr(self.coefficients, term):.4g} ± {getattr(self.errors, term):.2g}"
            for term in TERMS
            if getattr(self.coefficients, term) or getattr(self.errors, term)
        ]
        return f"{self.name}: {', '.join(terms)}; residual median {np.median(size):.1%}, worst {size.max():.1%}"


def compute(kind: str, rows: Sequence[Compute]) -> Part:
    columns, seconds = columns_of(rows)
    terms = 2
    if kind in SQUARED:  # samples get a coefficient where they are known and were varied independently of all else
        terms = 4 if columns[:, 3].all() and distinct(columns / seconds[:, None]) else 3
    columns = columns[:, :terms]
    names = [f"{kind} of {r.tokens:,} tokens, squares {r.squares:.4g}" for r in rows]
    fix = "measure single long samples beside many short ones" if kind in SQUARED else "measure more sizes"
    return _part(kind, columns, seconds, names, fix)


def columns_of(rows: Sequence[Compute]) -> tuple[Floats, Floats]:
    """What seconds depend on, and seconds."""
    columns = np.array([(r.microbatches, r.tokens, r.squares, r.samples) for r in rows], dtype=float)
    return columns, np.array([r.seconds for r in rows])


def transfers(m: Measurements) -> tuple[tuple[Timing, ...], list[Part]]:
    groups: dict[tuple[str, int], list[Transfer]] = {}
    for row in m.transfers:
        groups.setdefault((row.kind, row.devices), []).append(row)
    fitted = [_transfer(kind, devices, rows) for (kind, devices), rows in sorted(groups.items())]
    fixed: dict[tuple[str, int], list[float]] = {}
    for constant in m.constants:
        fixed.setdefault((constant.kind, constant.devices), []).append(constant.seconds)
    constants = [Timing(kind, n, _mean(np.array(seconds))) for (kind, n), seconds in sorted(fixed.items())]
    return (*(timing for timing, _ in fitted), *constants), [part for _, part in fitted]


def _transfer(kind: str, devices: int, rows: Sequence[Transfer]) -> tuple[Timing, Part]:
    """Fitted where nobody computed, if that was measured; then the rest says how much longer they take beside compute.

    A factor, since a machine measures few sizes beside compute: those of its model's units.
    """
    alone = [row for row in rows if not row.computing] or rows
    columns, seconds = np.array([(1.0, row.bytes) for row in alone]), np.array([row.seconds for row in alone])
    names = [f"{kind} of {row.bytes:,} bytes on {devices} devices" for row in alone]
    part = _part(f"{kind} on {devices} devices", columns, seconds, names, "measure more sizes")
    timing = Timing(kind, devices, part.coefficients.constant, part.coefficients.linear)
    beside = [row.seconds / (timing.constant + timing.per_byte * row.bytes) for row in rows if row.computing]
    return replace(timing, slowdown=_mean(np.array(beside))) if len(alone) < len(rows) else timing, part


def _mean(values: Floats) -> float:
    return float(np.median(values)) * stretch(np.zeros((len(values), 1)), values)


def _part(name: str, columns: Floats, seconds: Floats, names: Sequence[str], fix: str) -> Part:
    try:
        solution = solve(columns, seconds)
    except InputError as error:
        raise InputError(f"{name}: {error.problem}", fix=fix) from None
    residuals, unexplained = _judge(solution, columns, seconds, names)
    mean = stretch(columns, seconds)
    coefficients, errors = (
        Polynomial(**dict(zip(TERMS, (mean * values).tolist(), strict=False)))
        for values in (solution.coefficients, solution.errors)
    )
    return Part(name, coefficients, errors, residuals, unexplained, _doubts(name, solution, columns))


def _judge(
    solution: Solution, columns: Floats, seconds: Floats, names: Sequence[str]
) -> tuple[Floats, tuple[str, ...]]:
    """Residuals of the medians of repeats, and in words those that neither the fit nor noise explains.

    Noise is what repeats say; only without repeats it is what the fit leaves, which a bad fit would hide behind.
    """
    points, first, places = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    fitted = points @ solution.coefficients
    medians = np.array([np.median(seconds[places.ravel() == i]) for i in range(len(points))])
    residuals = fitted / medians - 1
    noise = jitter(columns, seconds) or min(solution.spread, WRONG / SIGMAS)
    unexplained = [
        f"{names[first[i]]}: measured {1e3 * medians[i]:.4g} ms, fitted {1e3 * fitted[i]:.4g} ms ({residuals[i]:+.0%})"
        for i in np.argsort(-np.abs(residuals))
        if abs(residuals[i]) > max(WRONG, SIGMAS * noise)
    ]
    return residuals, tuple(unexplained)


def _doubts(name: str, solution: Solution, columns: Floats) -> tuple[str, ...]:
    """A coefficient that may bring a tenth of the time somewhere and is known to no better than half of itself."""
    total = columns @ solution.coefficients
    doubts = []
    for i, (value, error) in enumerate(zip(solution.coefficients.tolist(), solution.errors.tolist(), strict=True)):
        if error > 0.5 * value and float((columns[:, i] * (value + 2 * error) / total).max()) > 0.1:
            doubts.append(f"{name}: its {TERMS[i]} coefficient is {value:.3g} with a standard error of {error:.2g}")
    return tuple(doubts)
