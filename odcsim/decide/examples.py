"""Which minibatch to show: the one that stands for all, or the one in which most is to be seen."""

from collections.abc import Sequence

import numpy as np

from odcsim.results.metrics import PARTS, Usage
from odcsim.timeline import Floats


def clearest(before: Usage, after: Usage) -> int:
    """Where the second is furthest ahead of the first; the first such, where there are several."""
    return int(np.argmax(before.makespan / after.makespan))


def typical(usages: Sequence[Usage]) -> int:
    """Where the idle of each is nearest to its idle over all minibatches."""
    off = [np.abs(_idle(usage) - usage.idle()) for usage in usages]
    return int(np.argmin(np.max(off, axis=0)))


def _idle(usage: Usage) -> Floats:
    """Of each minibatch."""
    lost = np.sum([getattr(usage, part) for part in PARTS], axis=0)
    total = usage.compute + lost
    return np.asarray(np.divide(lost, total, out=np.zeros_like(total), where=total > 0))
