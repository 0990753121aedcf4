"""What of a run is held against another of the same schedule: idle, ends, who took which entry, seconds by kind."""

import numpy as np
from numpy.typing import NDArray

from odcsim.program import EVERY
from odcsim.results.metrics import PARTS, Usage, delays, took
from odcsim.timeline import Floats, Timeline

KINDS = ("embed", "forward", "head", "backward", "overhead", "gather", "push", "optimizer", "publish", "meeting")


def idle(used: Usage) -> Floats:
    """Idle of each minibatch."""
    lost: Floats = np.sum([getattr(used, part) for part in PARTS], axis=0)
    total = lost + used.compute
    shares: Floats = np.divide(lost, total, out=np.zeros_like(total), where=total != 0)
    return shares


def finishes(timeline: Timeline) -> Floats:
    """When each device was done with its work and came to the meeting at the end [minibatch, device].

    Of a minibatch with a shared queue, who was done first, second and so on: which device takes an entry hangs on
    moments, so none has a share that it could be held against, and all end within an entry of each other.
    """
    ends = np.zeros((len(timeline.samples), timeline.about.devices))
    for block in timeline.blocks:
        steps = block.program.steps
        end = next(i for i, step in enumerate(steps) if step.kind == "meeting" and step.microbatch == EVERY)
        ended = block.asked[end]
        ends[block.minibatches] = ended if block.takers is None else np.sort(ended, axis=1)
    return ends


def same_taker(predicted: Timeline, measured: Timeline) -> NDArray[np.bool_]:
    """Of each entry of the shared queues, whether the device that ran it is the predicted one."""
    same: list[NDArray[np.bool_]] = [np.zeros(0, dtype=bool)]
    for number in range(len(measured.samples)):
        (one, i), (other, j) = predicted.block_of(number), measured.block_of(number)
        if one.takers is not None and other.takers is not None:
            mine, its = (row[row >= 0] for row in (one.takers[i], other.takers[j]))
            same.append(mine == its)
    return np.concatenate(same)


def seconds(timeline: Timeline) -> dict[str, Floats]:
    """Seconds of each kind in each minibatch, summed over devices; of a meeting, from when its last device came."""
    sums = {kind: np.zeros(len(timeline.samples)) for kind in KINDS}
    for block in timeline.blocks:
        late = delays(block)
        for i, step in enumerate(block.program.steps):
            what = block.program.durations[step.duration][0].split()[0]
            sums[what][block.minibatches] += took(block, i).sum(axis=1)
            if i in late:
                sums["overhead"][block.minibatches] += late[i].sum(axis=1)
    return sums
