"""One factor on what would be said of a run: from a log of its steps, or from the tokens that it does in a second.

What a step takes is simulated by the flags that the run had. Steps that differ enough in tokens also tell what a step
takes beside its tokens; else all of it is in the factor.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from odcsim.catalog import fits
from odcsim.decide import sharding, stock
from odcsim.decide.evaluate import Pair, evaluate, listed
from odcsim.decide.setting import Setting
from odcsim.decide.unmeasured import run_of, widen
from odcsim.errors import InputError
from odcsim.fitting.parts import SIGMAS, WRONG
from odcsim.fitting.robust import MAD
from odcsim.fitting.slope import NINETY, Slope, apart, slope
from odcsim.fitting.steps import LoggedStep
from odcsim.neighbours import named
from odcsim.profile import Profile, Timing
from odcsim.program import sync_named
from odcsim.results.summary import REFERENCE
from odcsim.support.numbers import counted, from_to, ratio
from odcsim.timeline import Floats

ALIKE = 1.2  # times the tokens, within which steps are those that were asked about
ODD = 3.0  # times the compute, beyond which something is wrong rather than slow
CLOSE = 1e-6  # of what was measured
REPEAT = 0.02  # of seconds: standard deviation between runs that publishers repeated on other numbers of GPUs
NOTHING = 1e-9  # times the compute: transfers are left
ROUNDS = 60


@dataclass(frozen=True)
class Simulated:
    """What the flags of a run say of its steps, under one way to run them."""

    setting: Setting
    way: Pair  # (balancer, sync)

    @cached_property
    def tokens(self) -> Floats:
        return np.array([float(self.setting.trace.take(ids).sum()) for ids in self.setting.draw()])

    @cached_property
    def seconds(self) -> Floats:
        return self.with_compute(1.0)

    @cached_property
    def slope(self) -> Slope:
        return slope(self.seconds, self.tokens)

    @cached_property
    def off(self) -> Floats:
        """How many times as long as by its tokens each step takes, for the lengths that it holds."""
        return self.seconds / self.slope.at(self.tokens)

    @property
    def rate(self) -> float:
        """Tokens in a second."""
        return float(self.tokens.sum() / self.seconds.sum())

    def with_compute(self, factor: float) -> Floats:
        """Seconds of each step where compute takes so many times as long."""
        cost = self.setting.cost
        at = replace(self.setting, cost=replace(cost, profile=cost.profile.stretched(factor)))
        return evaluate(at, [self.way]).usage(*self.way).makespan

    def is_alike(self, tokens: float) -> bool:
        """Whether steps of so many tokens are those that are drawn."""
        return 1 / ALIKE < tokens / self.slope.tokens < ALIKE

    def factor(self, seconds: float, logged: float = 0.0) -> float:
        """Of compute, by which a step takes so long on average: transfers take what they take. `logged`: tokens that a
        step was logged with, where that is known."""
        low, high = NOTHING, max(2.0, 2 * seconds / self.slope.seconds)
        least = float(self.with_compute(low).mean())
        if seconds <= least and logged and not self.is_alike(logged):
            problem = f"a step held {logged:,.0f} tokens, and {self.slope.tokens:,.0f} are drawn by these flags"
            raise InputError(problem, fix="give the batch, --devices and lengths of the run that was logged")
        if seconds <= least:
            problem = f"a step was measured at {seconds:.3g} s, and its transfers alone take {least:.3g} s by the flags"
            raise InputError(problem, fix="see --devices and the batch, or give faster links with --cluster")
        while (most := float(self.with_compute(high).mean())) < seconds:
            high *= 2
        below, above = (low, least), (high, most)
        for _ in range(ROUNDS):  # seconds go almost straight up with the factor
            factor = below[0] + (above[0] - below[0]) * (seconds - below[1]) / (above[1] - below[1])
            took = float(self.with_compute(factor).mean())
            if abs(took - seconds) <= CLOSE * seconds:
                break
            below, above = ((factor, took), above) if took < seconds else (below, (factor, took))
        return factor


def simulated(
    setting: Setting, balancer: str | None = None, sync: str | None = None, usual: Pair | None = None
) -> Simulated:
    """The way that ran, as far as somebody says it: the rest is what the trainer that they name runs fastest by itself,
    or `usual`, or else the reference."""
    trainer = stock.find(setting.trainer)
    if trainer is None:
        usual = usual or REFERENCE
        way = balancer or usual[0], sync or usual[1]
        if not named(way[0]).suits(sync_named(way[1])):
            raise InputError(f"{way[0]} under {way[1]}", fix="its counts differ between devices: --sync on-demand")
        return Simulated(setting, way)
    every = stock.choose(setting)
    fitting = [way for way in every if balancer in (None, way.balancer) and sync in (None, way.sync)]
    if not fitting:
        problem = f"{balancer or 'any balancer'} under {sync or 'any sync'} with --trainer {trainer.name}"
        raise InputError(problem, fix=f"it runs {listed([way.pair for way in every])}")
    fastest = min(fitting, key=stock.pace)
    return Simulated(fastest.setting, fastest.pair)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured over what was said, and the profile that gives it back."""

    simulated: Simulated
    ratio: float  # of seconds of a step
    beside: float  # seconds that a step takes beside that, where the steps tell
    factor: float  # of compute
    low: float  # 90 % interval of the ratio, as factors of it
    high: float
    kept: tuple[LoggedStep, ...] = ()
    left_out: tuple[LoggedStep, ...] = ()
    told: bool = False  # the steps tell what depends on tokens
    tokens: float = 0.0  # of a step that was logged; 0: not known

    @property
    def rate(self) -> float:
        """Tokens in a second, as measured."""
        of = self.simulated
        return float(of.tokens.sum()) / (self.ratio * float(of.seconds.sum()) + self.beside * len(of.seconds))

    def origin(self, name: str) -> str:
        """Where the factor is from: rows of a log of this name, or a number."""
        balancer, sync = self.simulated.way
        read = f"{counted(len(self.kept), 'row')} of {name}" if self.kept else "measured"
        share = f"{self.rate / self.simulated.rate:.2f} of the prediction"
        where = f"{sync} + {balancer} on {counted(self.simulated.setting.cost.cluster.gpus, 'device')}"
        return f"{read}: {self.rate:,.0f} tokens/s under {where}, {share}"

    def profile(self, name: str = "") -> Profile:
        """The same seconds, with compute as long as it was measured. It holds for what was in the run."""
        setting = self.simulated.setting
        before, devices = setting.cost.profile, setting.cost.cluster.gpus
        fixed = {"optimizer": before.optimizer + self.beside, "publish": before.publish}
        known = {t.kind for t in before.timings}
        timings = (Timing(kind, devices, seconds) for kind, seconds in fixed.items() if kind not in known)
        return replace(
            before.stretched(self.factor),
            fidelity="scaled",
            origin=f"{self.origin(name)}; {self.factor:.3g} times the compute of: {before.origin}",
            notes="One factor scales all compute: its split over tokens and squares of lengths is unchanged.",
            timings=(*before.timings, *timings),
            longest=setting.trace.longest,
            most_tokens=setting.limit,
            low=self.low,
            high=self.high,
            factor=self.factor if before.fidelity == "catalogue" else 0.0,
            run=run_of(setting),
            recipe=fits.words_of(setting.cost.recipe),
        )


def by_rate(simulated: Simulated, tokens_per_second: float) -> Calibration:
    """From one number: the interval is that of the steps drawn, and of runs that are repeated."""
    ratio = simulated.rate / tokens_per_second
    off = np.log(simulated.off)
    low, high = _interval(math.hypot(float(off.std()) / math.sqrt(len(off)), REPEAT))
    return Calibration(simulated, ratio, 0.0, simulated.factor(ratio * simulated.slope.seconds), low, high)


def reaching(setting: Setting, tokens_per_second: float) -> tuple[Setting, Calibration]:
    """The setting by seconds with which its usual way does so many tokens in a second, and how they were found."""
    calibration = by_rate(simulated(sharding.of_run(setting)), tokens_per_second)
    return widen(replace(setting, cost=replace(setting.cost, profile=calibration.profile()))), calibration


def by_steps(simulated: Simulated, steps: tuple[LoggedStep, ...], *, updates: bool = False) -> Calibration:
    """`updates`: a row of the log may hold several optimizer steps, which its tokens tell."""
    mean, known = simulated.slope.tokens, steps[0].tokens is not None
    sizes, seconds = (np.array([float(getattr(step, name)) for step in steps]) for name in ("steps", "seconds"))
    tokens = np.array([step.steps * mean if step.tokens is None else step.tokens for step in steps], dtype=np.float64)
    if updates:
        sizes = np.maximum(sizes, np.round(tokens / mean))
    said = sizes * simulated.slope.at(tokens / sizes)
    good = _usual(seconds / said, simulated.off)
    sizes, seconds, tokens, said = (values[good] for values in (sizes, seconds, tokens, said))
    ratio, beside, clear = float(seconds.sum() / said.sum()), 0.0, False
    measured = slope(seconds / sizes, tokens / sizes)
    if known and (split := apart(measured, simulated.slope, len(sizes))):
        (ratio, beside), clear = split, True
    scatter = np.log(seconds / (ratio * said + beside * sizes))
    low, high = _interval(max(_error(scatter, np.log(simulated.off), float(sizes.mean())), REPEAT))
    step = ratio * simulated.slope.seconds
    kept, left = (tuple(s for s, is_good in zip(steps, good, strict=True) if is_good is side) for side in (True, False))
    logged = float(tokens.sum() / sizes.sum()) if known else 0.0
    factor = simulated.factor(step, logged)
    return Calibration(simulated, ratio, beside, factor, low, high, kept, left, clear, logged)


def _usual(ratios: Floats, off: Floats) -> list[bool]:
    """Which of them are neither a first step nor one that saved or evaluated: not further off than noise and lengths
    bring a step."""
    middle = float(np.median(ratios))
    spread = MAD * float(np.median(np.abs(ratios / middle - 1)))
    most = max(WRONG, SIGMAS * spread, float(np.abs(off / np.median(off) - 1).max()))
    return [abs(ratio / middle - 1) <= most for ratio in ratios.tolist()]


def _error(scatter: Floats, off: Floats, steps: float) -> float:
    """Standard error of the ratio: of its mean, and what scatters beyond what the lengths of a step explain."""
    lengths, noise = float(off.var()), float(scatter.var(ddof=1)) if len(scatter) > 1 else 0.0
    return math.sqrt(
        max(noise, lengths / steps) / len(scatter) + lengths / len(off) + max(0.0, noise - lengths / steps)
    )


def _interval(error: float) -> tuple[float, float]:
    off = math.exp(NINETY * error)
    return 1 / off, off


def sentences(calibration: Calibration) -> Iterator[str]:
    """What was measured, what it is held against, and what it could not tell."""
    balancer, sync = calibration.simulated.way
    said = calibration.simulated.rate
    yield (
        f"measured: {calibration.rate:,.0f} tokens/s under {sync} + {balancer}, {calibration.rate / said:.2f} of the "
        f"{said:,.0f} predicted; compute takes {calibration.factor:.2f} times as long"
    )
    alone = ", as runs that others repeated: one number has no scatter of its own" if len(calibration.kept) < 2 else ""
    interval = from_to(calibration.low, calibration.high, lambda times, more: ratio(times, 1 + more))
    yield f"90 % interval: {interval} times these seconds{alone}"
    if calibration.told:
        fixed = f"{calibration.beside:.3g} s of each do not depend on them"
        yield f"steps differ enough in tokens: {fixed}, with the optimizer's"
    elif calibration.kept:
        yield "not known: what a step takes beside its tokens, in which steps differ too little: one factor for all"
    if calibration.left_out:
        shown = ", ".join(f"step {s.step} ({s.seconds:.3g} s)" for s in calibration.left_out[:4])
        more = f" and {len(calibration.left_out) - 4} more" if len(calibration.left_out) > 4 else ""
        yield f"left out: {counted(len(calibration.left_out), 'row')} unlike the others: {shown}{more}"
    yield from doubtful(calibration)
    yield "not known: which lengths a step held, how much grows with their squares, transfers apart from compute"


def doubtful(found: Calibration) -> Iterator[str]:
    """Where what was measured hardly is of the run that was told."""
    if found.tokens and not found.simulated.is_alike(found.tokens):
        drawn = found.simulated.slope.tokens
        yield f"doubtful: a step held {found.tokens:,.0f} tokens, and {drawn:,.0f} are drawn: check batch and padding"
    if not 1 / ODD < found.factor < ODD:
        yield "doubtful: that is far from what others reach: are tokens those of all devices?"


def taken(found: Calibration) -> str:
    """What ran, where nobody was asked."""
    balancer, sync = found.simulated.way
    return f"taken to have run {balancer} under {sync}: 'odcsim fit --balancer ... --sync ...' says otherwise"
