"""What would change the steps of a pipeline, as far as its operations alone tell: they are replayed in another way."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from odcsim.balance.rules import equal_counts
from odcsim.decide.diagnosis.found import EFFORTS, Breakdown, Change, Changes
from odcsim.decide.diagnosis.pipeline_causes import PassCauses, causes_of
from odcsim.decide.diagnosis.pipeline_grid import grid_of
from odcsim.decide.diagnosis.shares import mean_off
from odcsim.observed.run import SeenRun
from odcsim.timeline import Floats

SETTING, _, SAMPLER, _ = EFFORTS
WORTH = 1.01  # what a way has to bring
LAYERS = "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers"  # of megatron-core
RESTS = "the seconds of the run's own operations, replayed"
BOUND = "a bound: whole layers move from stage to stage"


def pipeline_changes(run: SeenRun, found: Breakdown, asked: Mapping[str, Any]) -> Changes:
    """Ways in order of effort, of what was measured alone: no lengths are known, nor what other microbatches take."""
    causes = causes_of(grid_of(run))
    grid = causes.grid
    base = grid.replay(grid.seconds)
    dealt = _dealt(causes)
    tried = [
        (SETTING, "layers moved until all stages take as long", LAYERS, _layered(causes, grid.seconds), BOUND),
        (SAMPLER, "the same microbatches reassigned to data-parallel ranks, by their seconds", "", dealt, RESTS),
        (SAMPLER, "microbatches reassigned, and layers moved", LAYERS, _layered(causes, dealt), BOUND),
    ]
    step = float(np.mean([found.seconds]))
    ways = [
        _change(run, effort, way, setting, (base, grid.replay(seconds)), rests, step, asked.get("price"))
        for effort, way, setting, seconds, rests in tried
    ]
    replayed = float(base.sum() / grid.measured.sum())
    return Changes(
        tuple(way for way in ways if way.gain >= WORTH), replayed, RESTS, cannot=tuple(_cannot(causes, base))
    )


def _layered(causes: PassCauses, seconds: Floats) -> Floats:
    """Every stage's passes take as long as those of all stages do on average."""
    usual = causes.usual
    found: Floats = seconds * usual.mean(axis=0) / usual
    return found


def _dealt(causes: PassCauses) -> Floats:
    """Seconds of passes [unit, stage, place] where each step's microbatches are dealt anew, as many to each rank."""
    grid = causes.grid
    alike = grid.seconds / causes.paces
    source = np.arange(len(alike))
    for step in range(len(grid.measured)):
        units = np.flatnonzero(grid.steps == step)
        units = units[np.lexsort((grid.numbers[units], grid.replicas[units]))]
        counts = np.bincount(grid.replicas[units], minlength=len(grid.ranks))
        if np.ptp(counts):
            continue  # ranks that run more than others do so by a rule that is not known
        held = equal_counts(alike[units].sum(axis=(1, 2)), len(grid.ranks))
        source[units] = units[held[:, : counts[0]].ravel()]
    dealt: Floats = alike[source] * causes.paces
    return dealt


def _change(
    run: SeenRun,
    effort: str,
    way: str,
    setting: str,
    replays: tuple[Floats, Floats],
    rests: str,
    step: float,
    price: float | None,
) -> Change:
    before, after = replays
    gain = float(before.sum() / after.sum())
    off = mean_off(before - gain * after) / float(after.mean())
    return Change(
        effort,
        way,
        gain,
        max(0.0, gain - off),
        gain + off,
        step / gain,
        balancer="",
        sync=run.sync,
        max_tokens=0,
        row={},
        dollars_a_day=None if price is None else run.ranks * 24 * price * (1 - 1 / gain),
        setting=setting,
        rests=rests,
    )


def _cannot(causes: PassCauses, base: Floats) -> Iterator[str]:
    even = causes.seconds(lengths=False, device=True, stages=True, rest=True)
    most = float(base.sum() / causes.grid.replay(even).sum())
    if most >= WORTH:
        yield (
            "how much faster repacked samples would be, since no lengths are known: with microbatches all alike steps "
            f"would be {most:.2f} times as fast, which is the most"
        )
