"""How much wider an interval is where a question differs from the run that its seconds were measured on.

A fit knows how far that one run is off what estimates say, and not what others are. What differs adds the spread that
the catalogue's estimates have of such runs, or the part of it that published runs of one publisher show
(`docs/studies/scaling.py`), and all of it combines in squares: different devices are no reason that lengths are known.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.catalog.estimates.rates import INTERVAL, family_of, kinds, spreads, together
from odcsim.cost import Cost
from odcsim.decide.setting import Setting
from odcsim.profile import ProfileRun
from odcsim.schedule import Schedule
from odcsim.support.numbers import counted

MEASURED = ("calibrated", "scaled", "extrapolated")
# Of the catalogue's spread. Where transfers go to other places, or samples attend to more, a fit knows no more of it.
SHARES = {"devices": 0.5, "nodes": 1.0, "sharding": 1.0, "group": 1.0, "lengths": 1.0, "batch": 0.7}

ALIKE = 1.05  # times: drawn samples of one file differ by as much


def run_of(setting: Setting) -> ProfileRun:
    """What of a run its seconds depend on, and is not in a profile's own numbers."""
    trace = setting.trace
    counts = np.ones(len(trace.lengths)) if trace.counts is None else trace.counts
    return _run(setting.cost, trace.lengths, counts, setting.device_tokens)


def run_of_schedules(cost: Cost, schedules: Sequence[Schedule]) -> ProfileRun:
    """The same of what a file of schedules holds."""
    sizes = np.concatenate([schedule.sizes for schedule in schedules])
    return _run(cost, sizes, np.ones(len(sizes)), float(sizes.sum()) / len(schedules) / cost.workers)


def _run(cost: Cost, lengths: NDArray[np.int64], counts: NDArray[Any], device: float) -> ProfileRun:
    """With the length of the sample that a token is of, on average."""
    tokens = lengths.astype(np.float64) * counts
    length = float((lengths * tokens).sum() / tokens.sum())
    return ProfileRun(cost.cluster.gpus, cost.cluster.nodes, cost.sharded, length, device)


def widen(setting: Setting) -> Setting:
    """The setting, by a profile whose interval is as wide as what nobody measured of it makes it, and says why."""
    return replace(setting, cost=widen_cost(setting.cost, run_of(setting), setting.trace.longest))


def widen_cost(cost: Cost, now: ProfileRun, longest: int) -> Cost:
    """`now`, `longest`: what is asked about, and tokens of its longest sample."""
    profile = cost.profile
    if profile.fidelity not in MEASURED or not (unlike := list(differences(cost, now, longest))):
        return cost
    spread = together(spreads(), kinds(family_of(profile.gpu.lower()), cost.model, cost.recipe))
    added = INTERVAL * spread * math.hypot(*(SHARES[name] * min(1.0, part) for name, part, _ in unlike))
    low, high = (math.hypot(math.log(end), added) for end in (profile.low, profile.high))
    why = "; ".join(words for *_, words in unlike)
    origin = f"{profile.origin}; a wider interval, for what was not measured: {why}"
    return replace(cost, profile=replace(profile, origin=origin, low=math.exp(-low), high=math.exp(high)))


def differences(cost: Cost, now: ProfileRun, longest: int) -> Iterator[tuple[str, float, str]]:
    """By name: how much of a doubling, and in words."""
    profile, known = cost.profile, cost.profile.run
    counts = [known.devices] if known.devices else [timing.devices for timing in profile.timings]
    if counts:
        nearest = min(max(now.devices, min(counts)), max(counts))
        if part := _doublings(now.devices, nearest):
            yield "devices", part, f"{counted(now.devices, 'device')}, not {nearest:,}"
        nodes = known.nodes or -(-max(counts) // cost.cluster.devices_per_node)
        if (nodes == 1) != (now.nodes == 1):
            yield "nodes", 1.0, f"{counted(now.nodes, 'node')}, not {nodes:,}"
    if known.nodes > 1 and now.nodes > 1 and known.sharding != now.sharding:
        yield "sharding", 1.0, f"{now.sharding} sharding, not {known.sharding}"
    if (each := cost.recipe.context) > 1:
        yield "group", 1.0, f"context parallelism over {each} GPUs"
    if known.length and (part := _doublings(now.length, known.length)):
        words = f"a token's sample has {now.length:,.0f} tokens on average, not {known.length:,.0f}"
        yield "lengths", part, words
    if not known.length and profile.longest and (part := _doublings(max(longest, profile.longest), profile.longest)):
        yield "lengths", part, f"samples of up to {longest:,} tokens, not {profile.longest:,}"
    if known.tokens and (part := _doublings(now.tokens, known.tokens)):
        yield "batch", part, f"{now.tokens:,.0f} tokens of a device in a minibatch, not {known.tokens:,.0f}"


def _doublings(one: float, other: float) -> float:
    """Between two sizes; none where they are alike."""
    doublings = abs(math.log2(one / other))
    return doublings if doublings > math.log2(ALIKE) else 0.0
