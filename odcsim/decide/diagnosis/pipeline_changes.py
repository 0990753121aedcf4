"""What would change the steps of a pipeline, as far as its operations alone tell: they are replayed in another way."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from odcsim.balance.rules import equal_counts
from odcsim.decide.diagnosis.outcome import EFFORTS, Breakdown, Change, Changes, mean_off
from odcsim.decide.diagnosis.pipeline_causes import PassCauses, causes_of
from odcsim.decide.diagnosis.pipeline_grid import grid_of
from odcsim.observed.run import SeenRun
from odcsim.timeline import Floats

SETTING, _, SAMPLER, _ = EFFORTS
WORTH = 1.01  # what a way has to bring
LAYERS = "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers"  # of megatron-core
RESTS = "the seconds of the run's own operations, replayed"
BOUND = "a bound: whole layers move from stage to stage"


def pipeline_changes(run: SeenRun, breakdown: Breakdown, words: Mapping[str, Any]) -> Changes:
    """Ways in order of effort, of what was measured alone: no lengths are known, nor what other microbatches take."""
    causes = causes_of(grid_of(run))
    grid = causes.grid
    base = grid.replay(grid.seconds)
    dealt = deal_again(causes)
    tried = [
        (SETTING, "layers moved until all stages take as long", LAYERS, level_stages(causes, grid.seconds), BOUND),
        (SAMPLER, "the same microbatches reassigned to data-parallel ranks, by their seconds", "", dealt, RESTS),
        (SAMPLER, "microbatches reassigned, and layers moved", LAYERS, level_stages(causes, dealt), BOUND),
    ]
    ways, price = list[Change](), words.get("price")
    for effort, way, setting, seconds, rests in tried:
        after = grid.replay(seconds)
        gain = float(base.sum() / after.sum())
        off = mean_off(base - gain * after) / float(after.mean())
        if gain >= WORTH:
            one = Change(
                effort,
                way,
                gain,
                max(0.0, gain - off),
                gain + off,
                breakdown.seconds / gain,
                balancer="",
                sync=run.sync,
                max_tokens=0,
                row={},
                dollars_a_day=None if price is None else run.ranks * 24 * price * (1 - 1 / gain),
                setting=setting,
                rests=rests,
            )
            ways.append(one)
    even = causes.seconds(lengths=False, device=True, stages=True, rest=True)
    most, cannot = float(base.sum() / grid.replay(even).sum()), tuple[str, ...]()
    if most >= WORTH:
        cannot = (
            "how much faster repacked samples would be, since no lengths are known: with microbatches all alike steps "
            f"would be {most:.2f} times as fast, which is the most",
        )
    return Changes(tuple(ways), float(base.sum() / grid.measured.sum()), RESTS, cannot=cannot)


def level_stages(causes: PassCauses, seconds: Floats) -> Floats:
    """Every stage's passes take as long as those of all stages do on average."""
    usual = causes.usual
    level: Floats = seconds * usual.mean(axis=0) / usual
    return level


def deal_again(causes: PassCauses) -> Floats:
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
        deal = equal_counts(alike[units].sum(axis=(1, 2)), len(grid.ranks))
        source[units] = units[deal[:, : counts[0]].ravel()]
    dealt: Floats = alike[source] * causes.paces
    return dealt
