"""From measurements to a profile: pure, and honest about what the fit cannot explain.

One polynomial for each kind of compute, a constant and a part per byte for each kind of transfer and number of devices,
medians for the rest. Repeats of a measurement are all fitted; a fit is judged by their median, so that one
interrupted call is no reason to distrust it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.measurements import KEPT, Compute, Measurements, Transfer
from odcsim.fitting.robust import Solution, distinct, jitter, solve, stretch
from odcsim.fitting.spells import slow, swing
from odcsim.model import ATTENTION_BACKWARD, LINEAR_BACKWARD
from odcsim.profile import Passes, Polynomial, Profile, Timing
from odcsim.recipe import USUAL, Recipe
from odcsim.timeline import Floats

WRONG = 0.10  # a fit that misses a measurement by more than this, and by more than noise can do, has not explained it
SIGMAS = 5.0
SHOWN = 12  # unexplained measurements in words
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


@dataclass(frozen=True, slots=True)
class FitReport:
    """A profile, and what speaks against it."""

    profile: Profile
    parts: tuple[Part, ...]

    @property
    def unexplained(self) -> tuple[str, ...]:
        """Measurements that the fit misses."""
        return tuple(line for part in self.parts for line in part.unexplained)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Coefficients that matter and that the measurements hardly settle."""
        return tuple(line for part in self.parts for line in part.doubts)

    @property
    def good(self) -> bool:
        return not self.unexplained

    def lines(self) -> list[str]:
        """The fit in words, what speaks against it last."""
        told = [_told(part) for part in self.parts]
        p = self.profile
        told.append(f"between repeats: {p.jitter:.1%} (0 where nothing was measured twice)")
        if p.swing:
            told.append(f"a device's speed swings by {p.swing:.1%} in spells of {p.spell:.2g} s")
        told += [f"device {d} takes {factor:.2f} times as long as all on average" for d, factor in enumerate(p.slow)]
        if p.interference != 1:
            told.append(
                f"beside others compute takes {p.interference:.2f} times what it takes alone: in the fit already"
            )
        told += [
            f"{t.kind} on {t.devices} devices: {t.slowdown:.2f} times as long beside compute"
            for t in p.timings
            if t.slowdown != 1
        ]
        told.append(f"valid for samples up to {p.longest:,} tokens, microbatches up to {p.most_tokens:,}")
        told += [f"doubtful: {line}" for line in self.doubts]
        told += [f"NOT EXPLAINED: {line}" for line in self.unexplained[:SHOWN]]
        return told + ([f"NOT EXPLAINED: {left} more"] if (left := len(self.unexplained) - SHOWN) > 0 else [])


def fit(measurements: Measurements) -> Profile:
    """The profile alone. `examine` also says what the fit does not explain."""
    return examine(measurements).profile


def examine(
    measurements: Measurements, layers: int = 0, *, transfers_included: bool = False, recipe: Recipe = USUAL
) -> FitReport:
    """Fit everything. Compute that was timed as whole microbatches needs the model's number of layers, and the
    recipe that they ran by."""
    m = measurements
    usual = sorted((row for row in m.compute if not row.alone), key=lambda row: row.kind)
    rows = {kind: list(of) for kind, of in groupby(usual, key=lambda row: row.kind)}
    whole = "microbatch" in rows
    if whole and (not layers or len(rows) > 1):
        raise InputError("whole microbatches beside other kinds", fix="measure either those or layers, head, embed")
    if not whole and (missing := [kind for kind in ("forward", "backward", "head") if kind not in rows]):
        raise InputError(f"nothing measured of {', '.join(missing)}", fix="measure forward, backward and head")
    computes = {kind: _compute(kind, of) for kind, of in rows.items()}
    swings, (timings, moved) = swing(usual), _transfers(m)
    parts = (*computes.values(), *moved)
    terms = _whole(computes["microbatch"], layers, recipe.recompute) if whole else _layers(computes)
    constant = computes["microbatch"].coefficients.constant if whole else 0.0
    profile = replace(
        _profile(m, rows, parts, list(computes.values()), terms),
        recompute=recipe.recompute or not whole,
        overhead=constant,
        node_transfers_included=transfers_included,
        timings=timings,
        interference=_interference(m, computes),
        swing=swings.size,
        spell=swings.spell,
        slow=slow(usual),
    )
    return FitReport(profile, parts)


def _profile(
    m: Measurements,
    rows: dict[str, list[Compute]],
    parts: Sequence[Part],
    computes: Sequence[Part],
    terms: dict[str, Polynomial],
) -> Profile:
    """Coefficients, and what says how far to trust them."""
    errors, every = (np.abs(np.concatenate([p.residuals for p in of])) for of in (computes, parts))
    bad = sum(len(p.unexplained) for p in parts)
    off = min(float(errors.max() if bad else np.quantile(errors, 0.95)), 0.9)
    count = len(m.compute) + len(m.transfers) + len(m.constants)
    told = [f"{count} measurements", f" on {m.hardware}" if m.hardware else "", f", {m.date}" if m.date else ""]
    squared = [of for kind, of in rows.items() if kind in SQUARED]
    return Profile(
        m.model,
        m.gpu,
        "calibrated",
        "".join(told) + (f"; {bad} of them not explained by the fit" if bad else ""),
        terms["forward"],
        terms["backward"],
        terms["head"],
        terms.get("embed", Polynomial()),
        notes=m.notes,
        longest=min(max(r.longest or int(r.squares / r.tokens) for r in of) for of in squared),
        most_tokens=min(max(r.tokens // r.microbatches for r in of) for of in rows.values()),
        low=1 / (1 + off),
        high=1 / (1 - off),
        hardware=m.hardware,
        versions=m.versions,
        date=m.date,
        dtype=m.dtype,
        transport=m.transport,
        jitter=max(jitter(*_columns(of)) for of in rows.values()),
        residual=float(np.median(every)),
        worst_residual=float(every.max()),
        forward_error=terms["forward_error"],
        backward_error=terms["backward_error"],
        head_error=terms.get("head_error", Polynomial()),
        embed_error=terms.get("embed_error", Polynomial()),
        kept=Passes(
            *(terms.get(f"{name}{KEPT}{of}", Polynomial()) for of in ("", "_error") for name in PASSES),
        ),
    )


def _interference(m: Measurements, computes: dict[str, Part]) -> float:
    """How many times longer compute took beside other devices and transfers than alone; 1 where that is not known."""
    found = [
        (c.constant + c.linear * r.tokens + c.quadratic * r.squares + c.sample * r.samples) / r.seconds
        for r in m.compute
        if r.alone and r.kind in SQUARED and r.kind in computes
        for c in (computes[r.kind].coefficients,)
    ]
    return float(np.median(found)) if found else 1.0


def _layers(computes: dict[str, Part]) -> dict[str, Polynomial]:
    found = {kind: part.coefficients for kind, part in computes.items()}
    return found | {f"{kind}_error": part.errors for kind, part in computes.items()}


def _whole(part: Part, layers: int, recompute: bool) -> dict[str, Polynomial]:
    """All compute given to the layers, split over forward and backward as the FLOPs are."""
    forwards = 2 if recompute else 1
    linear, quadratic = 1 / (forwards + LINEAR_BACKWARD), 1 / (forwards + ATTENTION_BACKWARD)

    def share(of: Polynomial, a: float, b: float) -> Polynomial:
        return Polynomial(0.0, a * of.linear / layers, b * of.quadratic / layers)

    found = {"head": Polynomial()}
    for suffix, of in (("", part.coefficients), ("_error", part.errors)):
        found["forward" + suffix] = share(of, linear, quadratic)
        found["backward" + suffix] = share(of, 1 - linear, 1 - quadratic)
    return found


def _compute(kind: str, rows: Sequence[Compute]) -> Part:
    columns, seconds = _columns(rows)
    columns = columns[:, : _terms(kind, columns, seconds)]
    names = [f"{kind} of {r.tokens:,} tokens, squares {r.squares:.4g}" for r in rows]
    fix = "measure single long samples beside many short ones" if kind in SQUARED else "measure more sizes"
    return _part(kind, columns, seconds, names, fix)


def _columns(rows: Sequence[Compute]) -> tuple[Floats, Floats]:
    """What seconds depend on, and seconds."""
    held = np.array([(r.microbatches, r.tokens, r.squares, r.samples) for r in rows], dtype=float)
    return held, np.array([r.seconds for r in rows])


def _terms(kind: str, columns: Floats, seconds: Floats) -> int:
    """Samples get a coefficient where they are known and were varied independently of all else."""
    if kind not in SQUARED:
        return 2
    return 4 if columns[:, 3].all() and distinct(columns / seconds[:, None]) else 3


def _transfers(m: Measurements) -> tuple[tuple[Timing, ...], list[Part]]:
    groups: dict[tuple[str, int], list[Transfer]] = {}
    for row in m.transfers:
        groups.setdefault((row.kind, row.devices), []).append(row)
    found = [_transfer(kind, devices, rows) for (kind, devices), rows in sorted(groups.items())]
    fixed: dict[tuple[str, int], list[float]] = {}
    for constant in m.constants:
        fixed.setdefault((constant.kind, constant.devices), []).append(constant.seconds)
    constants = [Timing(kind, n, _mean(np.array(seconds))) for (kind, n), seconds in sorted(fixed.items())]
    return (*(timing for timing, _ in found), *constants), [part for _, part in found]


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
    coefficients, errors = (Polynomial(*(mean * v).tolist()) for v in (solution.coefficients, solution.errors))
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
    told = [
        f"{names[first[i]]}: measured {1e3 * medians[i]:.4g} ms, fitted {1e3 * fitted[i]:.4g} ms ({residuals[i]:+.0%})"
        for i in np.argsort(-np.abs(residuals))
        if abs(residuals[i]) > max(WRONG, SIGMAS * noise)
    ]
    return residuals, tuple(told)


def _doubts(name: str, solution: Solution, columns: Floats) -> tuple[str, ...]:
    """A coefficient that may bring a tenth of the time somewhere and is known to no better than half of itself."""
    total = columns @ solution.coefficients
    told = []
    for i, (value, error) in enumerate(zip(solution.coefficients.tolist(), solution.errors.tolist(), strict=True)):
        if error > 0.5 * value and float((columns[:, i] * (value + 2 * error) / total).max()) > 0.1:
            told.append(f"{name}: its {TERMS[i]} coefficient is {value:.3g} with a standard error of {error:.2g}")
    return tuple(told)


def _told(part: Part) -> str:
    size = np.abs(part.residuals)
    terms = [
        f"{term} {getattr(part.coefficients, term):.4g} ± {getattr(part.errors, term):.2g}"
        for term in TERMS
        if getattr(part.coefficients, term) or getattr(part.errors, term)
    ]
    return f"{part.name}: {', '.join(terms)}; residual median {np.median(size):.1%}, worst {size.max():.1%}"
