"""What single spans come to: seconds without waiting for peers, and the machine's own work between two steps."""

import numpy as np

from odcsim.program import COMPUTE
from odcsim.results.gaps import begun, gaps, uncovered
from odcsim.timeline import Block, Floats


def delays(block: Block) -> dict[int, Floats]:
    """Before each step of the compute lane: seconds in which the lane was idle, and no transfer that the step needs was
    under way or waited for peers.

    That is the machine's own work between two steps: the engine's copies, a launch, a scheduler's delay, and whatever
    kept it from giving a transfer to its lane any earlier.
    """
    return {
        i: uncovered(block.had[gap.before], block.asked[i], [(block.asked[t], block.had[t]) for t in gap.transfers])
        for i, gap in enumerate(gaps(block.program))
        if block.program.steps[i].lane == COMPUTE and gap.before >= 0
    }


def took(block: Block, i: int) -> Floats:
    """Seconds of a step on each device; of one that meets, from when its last device came."""
    asked = block.asked[i]
    moved = begun(asked) if block.program.steps[i].meets else asked
    seconds: Floats = np.maximum(block.had[i] - moved, 0.0)
    return seconds
