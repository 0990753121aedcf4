"""What no assignment can get below."""

import numpy as np
from numpy.typing import NDArray


def lower_bound(weights: NDArray[np.float64], devices: int) -> float:
    """The heaviest device of any assignment weighs at least this much.

    The mean load; the heaviest sample; and for every i the samples i * devices + 1 and the i before it: of the first
    i * devices + 1 samples some device holds i + 1, and those are the lightest of them.
    """
    heaviest = np.sort(weights)[::-1]
    total = np.concatenate(([0.0], np.cumsum(heaviest)))
    more = np.arange(1, (len(weights) - 1) // devices + 1)
    together = total[more * devices + 1] - total[more * devices - more]
    return float(max(total[-1] / devices, heaviest[0], together.max(initial=0.0)))
