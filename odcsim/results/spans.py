"""What single spans come to: seconds without waiting for peers, and the machine's own work between two steps."""

from collections.abc import Sequence

import numpy as np

from odcsim.program import COMPUTE
from odcsim.results.gaps import begun, gaps
from odcsim.timeline import Block, Floats


def delays(block: Block) -> dict[int, Floats]:
    """Before each step of the compute lane: seconds in which the lane was idle, and no transfer that the step needs was
    under way or waited for peers.

    That is the machine's own work between two steps: the engine's copies, a launch, a scheduler's delay, and whatever
    kept it from giving a transfer to its lane any earlier.
    """
    return {
        i: _idle(block.had[gap.before], block.asked[i], [(block.asked[t], block.had[t]) for t in gap.transfers])
        for i, gap in enumerate(gaps(block.program))
        if block.program.steps[i].lane == COMPUTE and gap.before >= 0
    }


def _idle(start: Floats, end: Floats, spans: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Seconds from `start` to `end` that no span covers; spans may overlap."""
    if not spans:
        return np.maximum(end - start, 0.0)
    asked, had = (np.stack([span[k] for span in spans]) for k in (0, 1))
    order = np.argsort(asked, axis=0)
    asked, had = (np.take_along_axis(times, order, axis=0) for times in (asked, had))
    reached = np.maximum.accumulate(np.concatenate([start[None], had]), axis=0)
    begun = np.minimum(np.concatenate([asked, end[None]]), end)
    seconds: Floats = np.maximum(begun - reached, 0.0).sum(axis=0)
    return seconds


def took(block: Block, i: int) -> Floats:
    """Seconds of a step on each device; of one that meets, from when its last device came."""
    asked = block.asked[i]
    moved = begun(asked) if block.program.steps[i].meets else asked
    seconds: Floats = np.maximum(block.had[i] - moved, 0.0)
    return seconds
