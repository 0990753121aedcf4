"""Which of two deals of a minibatch devices that meet are done with first, by the seconds of every step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from odcsim.cost import Cost
from odcsim.executors.simulation import makespans
from odcsim.program import SYNC_TABLE
from odcsim.schedule import Schedule

MEET = tuple(name for name, sync in SYNC_TABLE.items() if sync.meets)


def sooner(cost: Cost, rivals: Mapping[int, Schedule], schedules: Sequence[Schedule]) -> list[int]:
    """The numbers of the minibatches whose rival is ahead under any sync that meets: dealt there, it is never behind.

    On devices as planned, since nobody knows beforehand what is drawn.
    """
    if not rivals:
        return []
    ways = {cost.by(sync=sync, exchange=exchange).ran for sync in MEET for exchange in ("end", "layers")}
    both = [*rivals.values(), *(schedules[n] for n in rivals)]  # in one row: those of like shape are simulated at once
    ahead = np.zeros(len(rivals), dtype=bool)
    for recipe in ways:
        theirs, ours = makespans(both, replace(cost.calm, recipe=recipe)).reshape(2, -1)
        ahead |= theirs < ours
    return [number for number, is_ahead in zip(rivals, ahead, strict=True) if is_ahead]
