"""About how long minibatches take, in one expression: for a search that looks at thousands of ways to run them.

All layers are alike, so a pass takes its slower lane as many times as there are layers: compute, or what is moved
beside it. What the scan knows and this does not is how a pass begins and ends, a percent or two. Who has found a few
ways to run asks the scan (`simulation.usage`).
"""

from collections.abc import Sequence

import numpy as np

from odcsim.cost import Cost
from odcsim.program import EVERY
from odcsim.schedule import Schedule
from odcsim.timeline import Floats

_MOVED = ("gather layer", "push layer", "sum layer")


def seconds(cost: Cost, schedules: Sequence[Schedule]) -> Floats:
    """Of each minibatch, which has no queue."""
    load = cost.load(schedules)
    program = cost.ran.program(1, len(load.tokens))  # of one layer: the others have the same rows
    table = dict(zip(program.durations, cost.durations(program, load), strict=True))
    meets, layers = not program.one_sided, cost.model.layers
    absent = np.zeros(load.counts.shape)

    def of(name: str, m: int) -> Floats:
        """Where devices meet in every layer, all take as long as the slowest."""
        found = table.get((name, m), absent)
        return np.broadcast_to(found.max(axis=1, keepdims=True), found.shape) if meets else found

    total = absent
    for m in range(len(load.tokens)):
        gather, push, summed = (of(name, m) for name in _MOVED)
        again = gather if cost.recipe.reshard else absent
        back = again + push if meets and cost.recipe.streams == "one" else np.maximum(again, push)
        passes = np.maximum(of("forward", m), gather) + np.maximum.reduce([of("backward", m), back, summed])
        once = [of(n, m) for n in ("overhead", "gather root", "embed", "head", "embed backward", "push root")]
        total = total + layers * passes + sum(once)
    ends = [found.max(axis=1) for (_, m), found in table.items() if m == EVERY]
    return np.asarray(total.max(axis=1) + sum(ends))
