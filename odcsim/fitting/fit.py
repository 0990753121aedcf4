"""From measurements to a profile: pure, and honest about what the fit cannot explain.

One polynomial for each kind of compute, a constant and a part per byte for each kind of transfer and number of devices,
medians for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.parts import PASSES, SQUARED, Part, columns_of, compute, transfers
from odcsim.fitting.robust import EXACT, jitter
from odcsim.fitting.slope import NINETY
from odcsim.fitting.spells import Drift, drift, slow, swing
from odcsim.measurements import KEPT, Compute, Measurements
from odcsim.model import ATTENTION_BACKWARD, LINEAR_BACKWARD
from odcsim.profile import Passes, Polynomial, Profile, ProfileRun
from odcsim.recipe import USUAL, Recipe
from odcsim.support.numbers import from_to, ratio

SHOWN = 12  # unexplained measurements in words
TWO_SIDED = 0.95, 1.96  # of errors as many are smaller, and of normal ones as many as these standard deviations


@dataclass(frozen=True, slots=True)
class FitReport:
    """A profile, and what speaks against it."""

    profile: Profile
    parts: tuple[Part, ...]
    drift: Drift = field(default_factory=Drift)  # of the machine, while it was measured

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
        lines = [part.line() for part in self.parts]
        p = self.profile
        lines.append(f"between repeats: {p.jitter:.1%} (0 where nothing was measured twice)")
        if self.drift.spells:
            lines.append(f"between {self.drift.spells} spells of measuring the speed drifts by {self.drift.size:.1%}")
        lines.append(f"90 % interval: {from_to(p.low, p.high, ratio)} times these seconds")
        if p.swing:
            lines.append(f"a device's speed swings by {p.swing:.1%} in spells of {p.spell:.2g} s")
        lines += [f"device {d} takes {factor:.2f} times as long as all on average" for d, factor in enumerate(p.slow)]
        if p.interference != 1:
            lines.append(
                f"beside others compute takes {p.interference:.2f} times what it takes alone: in the fit already"
            )
        lines += [
            f"{t.kind} on {t.devices} devices: {t.slowdown:.2f} times as long beside compute"
            for t in p.timings
            if t.slowdown != 1
        ]
        lines.append(f"valid for samples up to {p.longest:,} tokens, microbatches up to {p.most_tokens:,}")
        lines += [f"doubtful: {line}" for line in self.doubts]
        lines += [f"NOT EXPLAINED: {line}" for line in self.unexplained[:SHOWN]]
        return lines + ([f"NOT EXPLAINED: {left} more"] if (left := len(self.unexplained) - SHOWN) > 0 else [])


def fit(measurements: Measurements) -> Profile:
    """The profile alone. `examine` also says what the fit does not explain."""
    return examine(measurements).profile


def examine(
    measurements: Measurements,
    layers: int = 0,
    *,
    transfers_included: bool = False,
    recipe: Recipe = USUAL,
    devices: int = 0,
) -> FitReport:
    """Fit everything. Compute that was timed as whole microbatches needs the model's number of layers, and the
    recipe that they ran by. `devices`: of that run, where no transfers tell."""
    m = measurements
    usual = sorted((row for row in m.compute if not row.alone), key=lambda row: row.kind)
    rows = {kind: list(of) for kind, of in groupby(usual, key=lambda row: row.kind)}
    at_once = "microbatch" in rows
    if at_once and (not layers or len(rows) > 1):
        raise InputError("whole microbatches beside other kinds", fix="measure either those or layers, head, embed")
    if not at_once and (missing := [kind for kind in ("forward", "backward", "head") if kind not in rows]):
        raise InputError(f"no measurements of {', '.join(missing)}", fix="measure forward, backward and head")
    computes = {kind: compute(kind, of) for kind, of in rows.items()}
    swings, (timings, moved) = swing(usual), transfers(m)
    parts = (*computes.values(), *moved)
    constant = computes["microbatch"].coefficients.constant if at_once else 0.0
    if at_once:
        terms = _of_microbatches(computes["microbatch"], layers, recipe.recomputes)
    else:
        terms = {kind: part.coefficients for kind, part in computes.items()}
        terms |= {f"{kind}_error": part.errors for kind, part in computes.items()}
    # Of what every spell has: passes without recompute are measured by themselves.
    timed = [row for row in usual if row.kind in computes and not row.kind.endswith(KEPT)]
    said = np.array([_seconds(computes[row.kind].coefficients, row) for row in timed])
    drifts = drift([row.spell for row in timed], np.array([row.seconds for row in timed]), said)
    profile = _profile(m, rows, parts, list(computes.values()), terms, _noise(rows) if drifts.spells else 0.0)
    # What the fit leaves open and what the machine's drift does know nothing of each other: their squares add up.
    low, high = (float(np.exp(np.hypot(np.log(end), drifts.reach))) for end in (profile.low, profile.high))
    profile = replace(
        profile,
        low=1 / low,
        high=high,
        recompute=recipe.recomputes or not at_once,
        microbatch=constant,
        node_transfers_included=transfers_included,
        timings=timings,
        interference=_interference(m, computes),
        swing=swings.size,
        spell=swings.spell,
        slow=slow(usual),
        run=ProfileRun(devices),
    )
    return FitReport(profile, parts, drifts)


def _noise(rows: dict[str, list[Compute]]) -> float:
    """How far off medians of repeats are by chance, at the quantile that errors are taken at: the middle of kinds."""
    every = []
    for columns, seconds in map(columns_of, rows.values()):
        repeats = len(seconds) / len(np.unique(columns, axis=0))
        every.append(jitter(columns, seconds) * np.sqrt(np.pi / 2 / repeats))
    return TWO_SIDED[1] * float(np.median(every))


def _seconds(c: Polynomial, r: Compute) -> float:
    return c.constant + c.linear * r.tokens + c.quadratic * r.squares + c.sample * r.samples


def _profile(
    m: Measurements,
    rows: dict[str, list[Compute]],
    parts: Sequence[Part],
    computes: Sequence[Part],
    terms: dict[str, Polynomial],
    noise: float,
) -> Profile:
    """Coefficients, and what says how far to trust them. `noise`: what errors would be at most if the fit were exact,
    where the scatter of spells tells what the machine does to all of them; 0 where it does not."""
    errors, every = (np.abs(np.concatenate([p.residuals for p in of])) for of in (computes, parts))
    bad = sum(len(p.unexplained) for p in parts)
    missed = float(np.sqrt(max(0.0, float(np.quantile(errors, TWO_SIDED[0])) ** 2 - noise**2)))
    noisy = max(jitter(*columns_of(of)) for of in rows.values())
    # Spells say what a machine does to all of a step; without, no step is known better than one call repeats.
    least = 0.0 if noise else NINETY * noisy
    off = min(max(float(errors.max()) if bad and not noise else missed, least, EXACT), 0.9)
    count = len(m.compute) + len(m.transfers) + len(m.constants)
    source = [f"{count} measurements", f" on {m.hardware}" if m.hardware else "", f", {m.date}" if m.date else ""]
    kept = {name + of: terms.get(f"{name}{KEPT}{of}", Polynomial()) for of in ("", "_error") for name in PASSES}
    squared = [of for kind, of in rows.items() if kind in SQUARED]
    return Profile(
        model=m.model,
        gpu=m.gpu,
        fidelity="calibrated",
        origin="".join(source) + (f"; {bad} of them not explained by the fit" if bad else ""),
        forward=terms["forward"],
        backward=terms["backward"],
        head=terms["head"],
        embed=terms.get("embed", Polynomial()),
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
        jitter=noisy,
        residual=float(np.median(every)),
        worst_residual=float(every.max()),
        forward_error=terms["forward_error"],
        backward_error=terms["backward_error"],
        head_error=terms.get("head_error", Polynomial()),
        embed_error=terms.get("embed_error", Polynomial()),
        kept=Passes(**kept),
    )


def _interference(m: Measurements, computes: dict[str, Part]) -> float:
    """How many times longer compute took beside other devices and transfers than alone; 1 where that is not known."""
    factors = [
        _seconds(computes[r.kind].coefficients, r) / r.seconds
        for r in m.compute
        if r.alone and r.kind in SQUARED and r.kind in computes
    ]
    return float(np.median(factors)) if factors else 1.0


def _of_microbatches(part: Part, layers: int, recompute: bool) -> dict[str, Polynomial]:
    """All compute given to the layers, split over forward and backward as the FLOPs are."""
    forwards = 2 if recompute else 1
    linear, quadratic = 1 / (forwards + LINEAR_BACKWARD), 1 / (forwards + ATTENTION_BACKWARD)

    def share(of: Polynomial, a: float, b: float) -> Polynomial:
        return Polynomial(0.0, a * of.linear / layers, b * of.quadratic / layers)

    shares = {"head": Polynomial()}
    for suffix, of in (("", part.coefficients), ("_error", part.errors)):
        shares["forward" + suffix] = share(of, linear, quadratic)
        shares["backward" + suffix] = share(of, 1 - linear, 1 - quadratic)
    return shares
