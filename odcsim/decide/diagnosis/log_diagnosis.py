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
from odcsim.decide.comparison import inputs
from odcsim.decide.diagnosis.alternatives import (
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
from odcsim.decide.diagnosis.outcome import PARTS, Breakdown, Changes, StepPart
from odcsim.decide.diagnosis.worth import change, worth
from odcsim.decide.evaluate import Evaluation, evaluate
from odcsim.decide.fitted import calibrated
from odcsim.decide.setting import MEET, Setting
from odcsim.decide.sharding import as_ran
from odcsim.errors import InputError
from odcsim.neighbours.logs import BY_HAND
from odcsim.observed.run import RanStep, SeenRun
from odcsim.program import sync_named
from odcsim.results.intervals import RUN, interval
from odcsim.support.numbers import counted
from odcsim.timeline import Floats

NEEDED = ("trace", "model", "gpu", "devices")
BARE = {"padded": "batches", "filled": "packed"}  # the same without padding


def diagnose_log(sources: Sequence[str], given: Mapping[str, Any]) -> tuple[SeenRun, Breakdown, Changes]:
    """`given`: the words of the run, as `odcsim fit` takes them of a log: its trace, model, GPU and devices, and whose
    trainer's it is or which balancer and sync ran."""
    words = {name: value for name, value in given.items() if value is not None}
    if missing := [f"--{name}" for name in NEEDED if name not in words]:
        fix = f"add {', '.join(missing)} of the run that it logged"
        raise InputError("a log of steps, which does not say what a step held", where=sources[0], fix=fix)
    calibration, log = calibrated(words, sources)
    assert log is not None
    if log.by.way is None and not words.keys() & {"trainer", "balancer"}:
        fix = "add --trainer, or --balancer and --sync: native where nobody balanced"
        raise InputError(
            "a log of steps, which does not say how samples were assigned to ranks", where=sources[0], fix=fix
        )
    profile = calibration.profile(Path(sources[0]).name)
    at = calibration.simulated.setting
    ran = evaluate(replace(at, cost=replace(at.cost, profile=profile)), [calibration.simulated.way])
    question = {name: value for name, value in words.items() if name not in ("balancer", "sync")}
    base = setting_of(as_ran(question_by(question)))
    base = replace(base, cost=replace(base.cost, profile=profile))
    # Steps of other batches tell nothing of where those that were logged went. Some trainers count padding.
    simulated = calibration.simulated
    drawn, bare = simulated.slope.tokens, 1 - float(_padding(ran).sum() / ran.usages[0].compute.sum())
    if calibration.tokens and not any(simulated.is_alike(calibration.tokens * share) for share in (1.0, bare)):
        problem = f"steps of {calibration.tokens:,.0f} tokens, where these flags draw steps of {drawn:,.0f}"
        fix = "give the batch (--minibatch or --global-batch), --devices and lengths (--trace, --truncate) of the run"
        raise InputError(problem, where=sources[0], fix=fix)
    balancer, sync = ran.rows[0].pair
    steps = tuple(RanStep(step.step, step.seconds / step.steps, ()) for step in log.steps)
    by = "" if log.by is BY_HAND else f" by {log.by.name}"
    source = f"a log of {counted(sum(step.steps for step in log.steps), 'step')}{by}"
    lacks = (*log.lacks, f"what ran: taken to be {balancer} under {sync}")
    # Of which nobody was seen.
    run = SeenRun(source, ran.setting.cost.workers, (), steps, sync, trainer=log.by.name, lacks=lacks)
    step = sum(row.seconds for row in calibration.kept) / sum(row.steps for row in calibration.kept)
    parts = "where a step went: its seconds are measured, its parts are simulated by the flags of the run"
    breakdown = _parts(ran, step, (parts, *calibrate.doubtful(calibration)))
    # Other ways run the samples that the flags say, at the pace of the log. Its steps, simulated, are as long as
    # measured by construction.
    every = [*of_rules(_own(ran, base)), *_samplers(ran, base)]
    rests = "lengths as the flags say them, at the pace of the log"
    ways = tuple(change(one, base, step, one.rests) for one in worth(every))
    cannot = "which lengths each step held: speedups are those of batches drawn from the trace"
    return run, breakdown, Changes(ways, 0.0, rests, inputs(base), (cannot,))


def _parts(ran: Evaluation, seconds: float, cannot: tuple[str, ...]) -> Breakdown:
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
    parts, step = list[StepPart](), times * usage.makespan
    for name in PARTS:
        part = by_step[name]
        low, high = interval(part, step, ran.draws, RUN) if part.any() else (0.0, 0.0)
        parts.append(StepPart(name, float(part.mean()), float(part.sum() / step.sum()), low, high))
    return Breakdown(tuple(parts), (), (), by_step, cannot)


def _padding(ran: Evaluation) -> Floats:
    """Seconds of compute, on all devices, that the same batches would not take without padding."""
    balancer, sync = ran.rows[0].pair
    if balancer not in BARE:
        return np.zeros(len(ran.usages[0].makespan))
    bare = evaluate(ran.setting, [(BARE[balancer], sync)])
    lost: Floats = np.maximum(0.0, ran.usages[0].compute - bare.usages[0].compute)
    return lost


def _own(ran: Evaluation, base: Setting) -> Iterator[TriedWay]:
    """What else the trainer runs by itself."""
    for way in stock.choose(base):
        other = evaluate(way.setting, [way.pair])
        if other.rows[0].pair != ran.rows[0].pair or way.setting.limit != ran.setting.limit:
            yield TriedWay(SETTING, own_way(way), other, _gain(ran, other))


def _samplers(ran: Evaluation, base: Setting) -> Iterator[TriedWay]:
    """The best sampler of each sync, and the best under on-demand."""
    sync = ran.rows[0].sync
    syncs = sorted(MEET, key=lambda one: one != sync) if sync in MEET else ()
    for effort, pairs in (
        (SAMPLER, [(name, one) for one in syncs for name in SAMPLERS]),
        (ENGINE if syncs else SAMPLER, [FREE]),
    ):
        every = []
        for balancer, under in pairs:
            assert neighbours.named(balancer).suits(sync_named(under))
            other = evaluate(base, [(balancer, under)])
            every.append(TriedWay(effort, named(other, ran), other, _gain(ran, other)))
        if every:
            yield max(every, key=lambda one: one.gain[0])


def _gain(ran: Evaluation, evaluation: Evaluation) -> tuple[float, float, float]:
    """Of the same minibatches where nobody packs them first."""
    took, other = ran.usages[0].makespan, evaluation.usages[0].makespan
    one, another = ran.setting, evaluation.setting
    same = one.minibatch == another.minibatch and one.trace.bundle is another.trace.bundle
    same = same and np.array_equal(one.trace.lengths, another.trace.lengths)
    if not same:
        return unlike(ran, took, evaluation)
    gain = float(took.sum() / other.sum())
    low, high = interval(took, other, evaluation.draws, RUN)
    return gain, min(low, gain), max(high, gain)
