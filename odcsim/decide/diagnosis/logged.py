"""A run of which a log of steps is all there is: its seconds are measured, and where they went is simulated.

The flags of the run say what a step held; one factor on compute, as `odcsim fit` finds it, makes it as long as logged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from odcsim import neighbours
from odcsim.decide import calibrate, stock
from odcsim.decide.asking import question_by, setting_of
from odcsim.decide.calibrate import Calibration
from odcsim.decide.comparison import inputs
from odcsim.decide.diagnosis.found import PARTS, Breakdown, Changes, StepPart
from odcsim.decide.diagnosis.told import change, worth
from odcsim.decide.diagnosis.tried import (
    ENGINE,
    FREE,
    SAMPLER,
    SAMPLERS,
    SETTING,
    TriedWay,
    named,
    of_rules,
    own_way,
    unlike,
)
from odcsim.decide.evaluate import Evaluation, Pair, evaluate
from odcsim.decide.fitted import calibrated
from odcsim.decide.setting import MEET, Setting
from odcsim.decide.sharding import as_ran
from odcsim.errors import InputError
from odcsim.fitting.steps import StepLog
from odcsim.neighbours.logs import BY_HAND
from odcsim.observed.run import RanStep, SeenRun
from odcsim.program import sync_named
from odcsim.results.intervals import RUN, interval
from odcsim.support.numbers import counted
from odcsim.timeline import Floats

NEEDED = ("trace", "model", "gpu", "devices")
BARE = {"padded": "batches", "filled": "packed"}  # the same without padding


def logged(sources: Sequence[str], given: Mapping[str, Any]) -> tuple[SeenRun, Breakdown, Changes]:
    """`given`: the words of the run, as `odcsim fit` takes them of a log: its trace, model, GPU and devices, and whose
    trainer's it is or which balancer and sync ran."""
    words = {name: value for name, value in given.items() if value is not None}
    if missing := [f"--{name}" for name in NEEDED if name not in words]:
        fix = f"add {', '.join(missing)} of the run that it logged"
        raise InputError("a log of steps, which does not say what a step held", where=sources[0], fix=fix)
    found, log = calibrated(words, sources)
    assert log is not None
    if log.by.way is None and not words.keys() & {"trainer", "balancer"}:
        fix = "add --trainer, or --balancer and --sync: native where nobody balanced"
        raise InputError(
            "a log of steps, which does not say how samples were assigned to ranks", where=sources[0], fix=fix
        )
    profile = found.profile(Path(sources[0]).name)
    at = found.simulated.setting
    ran = evaluate(replace(at, cost=replace(at.cost, profile=profile)), [found.simulated.way])
    asked = {name: value for name, value in words.items() if name not in ("balancer", "sync")}
    base = setting_of(as_ran(question_by(asked)))
    base = replace(base, cost=replace(base.cost, profile=profile))
    run = _run(log, ran)
    _check(found, ran, sources[0])
    step = sum(row.seconds for row in found.kept) / sum(row.steps for row in found.kept)
    return run, _found(ran, step, _told(found)), _changes(ran, base, step)


def _check(found: Calibration, ran: Evaluation, source: str) -> None:
    """Steps of other batches tell nothing of where those that were logged went. Some trainers count padding."""
    drawn, bare = found.simulated.slope.tokens, 1 - float(_padding(ran).sum() / ran.usages[0].compute.sum())
    if found.tokens and not any(found.simulated.is_alike(found.tokens * share) for share in (1.0, bare)):
        problem = f"steps of {found.tokens:,.0f} tokens, where these flags draw steps of {drawn:,.0f}"
        fix = "give the batch (--minibatch or --global-batch), --devices and lengths (--trace, --truncate) of the run"
        raise InputError(problem, where=source, fix=fix)


def _run(log: StepLog, ran: Evaluation) -> SeenRun:
    """Of which nobody was seen."""
    balancer, sync = ran.rows[0].pair
    steps = tuple(RanStep(step.step, step.seconds / step.steps, ()) for step in log.steps)
    by = "" if log.by is BY_HAND else f" by {log.by.name}"
    source = f"a log of {counted(sum(step.steps for step in log.steps), 'step')}{by}"
    devices = ran.setting.cost.workers
    taken = f"what ran: taken to be {balancer} under {sync}"
    return SeenRun(source, devices, (), steps, sync, trainer=log.by.name, lacks=(*log.lacks, taken))


def _told(found: Calibration) -> tuple[str, ...]:
    simulated = "where a step went: its seconds are measured, its parts are simulated by the flags of the run"
    return (simulated, *(line for line in calibrate.doubtful(found)))


def _found(ran: Evaluation, seconds: float, cannot: tuple[str, ...]) -> Breakdown:
    """The parts of each step that is drawn, as means over devices, where steps take so many seconds in the mean."""
    usage, devices = ran.usages[0], ran.setting.cost.workers
    times = seconds / float(usage.makespan.mean())
    known = {
        "transfer": (usage.gather + usage.push) / devices,
        "lengths": (usage.wait_inside + usage.wait_end) / devices,
        "edges": usage.other / devices,
        "padding": _padding(ran) / devices,
    }
    by_step = {name: known.get(name, np.zeros(len(usage.makespan))) for name in PARTS}
    by_step["compute"] = usage.compute / devices - by_step["padding"]
    by_step = {name: times * of for name, of in by_step.items()}
    parts = tuple(_part(name, by_step[name], times * usage.makespan, ran) for name in PARTS)
    return Breakdown(parts, (), (), by_step, cannot)


def _part(name: str, seconds: Floats, step: Floats, ran: Evaluation) -> StepPart:
    low, high = interval(seconds, step, ran.draws, RUN) if seconds.any() else (0.0, 0.0)
    return StepPart(name, float(seconds.mean()), float(seconds.sum() / step.sum()), low, high)


def _padding(ran: Evaluation) -> Floats:
    """Seconds of compute, on all devices, that the same batches would not take without padding."""
    balancer, sync = ran.rows[0].pair
    if balancer not in BARE:
        return np.zeros(len(ran.usages[0].makespan))
    bare = evaluate(ran.setting, [(BARE[balancer], sync)])
    lost: Floats = np.maximum(0.0, ran.usages[0].compute - bare.usages[0].compute)
    return lost


def _changes(ran: Evaluation, base: Setting, step: float) -> Changes:
    """On the samples that the flags say, at the pace of the log. Its steps, simulated, are as long as measured by
    construction."""
    every = [*of_rules(_own(ran, base)), *_dealt(ran, base)]
    rests = "lengths as the flags say them, at the pace of the log"
    ways = tuple(change(one, base, step, one.rests) for one in worth(every))
    cannot = "which lengths each step held: speedups are those of batches drawn from the trace"
    return Changes(ways, 0.0, rests, inputs(base), (cannot,))


def _own(ran: Evaluation, base: Setting) -> Iterator[TriedWay]:
    """What else the trainer runs by itself."""
    for way in stock.choose(base):
        found = evaluate(way.setting, [way.pair])
        if found.rows[0].pair != ran.rows[0].pair or way.setting.limit != ran.setting.limit:
            yield TriedWay(SETTING, own_way(way), found, _gain(ran, found))


def _dealt(ran: Evaluation, base: Setting) -> Iterator[TriedWay]:
    """The best sampler of each sync, and the best under on-demand."""
    sync = ran.rows[0].sync
    syncs = sorted(MEET, key=lambda one: one != sync) if sync in MEET else ()
    for efforts, pairs in (
        (SAMPLER, [(name, one) for one in syncs for name in SAMPLERS]),
        (ENGINE if syncs else SAMPLER, [FREE]),
    ):
        if pairs:
            yield max((_tried(efforts, pair, ran, base) for pair in pairs), key=lambda one: one.gain[0])


def _tried(effort: str, pair: Pair, ran: Evaluation, base: Setting) -> TriedWay:
    assert neighbours.named(pair[0]).suits(sync_named(pair[1]))
    found = evaluate(base, [pair])
    return TriedWay(effort, named(found, ran), found, _gain(ran, found))


def _gain(ran: Evaluation, found: Evaluation) -> tuple[float, float, float]:
    """Of the same minibatches where nobody packs them first."""
    took, other = ran.usages[0].makespan, found.usages[0].makespan
    one, another = ran.setting, found.setting
    same = one.minibatch == another.minibatch and one.trace.bundle is another.trace.bundle
    same = same and np.array_equal(one.trace.lengths, another.trace.lengths)
    if not same:
        return unlike(ran, took, found)
    gain = float(took.sum() / other.sum())
    low, high = interval(took, other, found.draws, RUN)
    return gain, min(low, gain), max(high, gain)
