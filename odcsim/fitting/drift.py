"""How a whole machine's speed drifts: what its spells of measuring took, each over the fit of all.

A host shares its cores with others, and a clock follows the heat, over minutes. Whoever runs later meets another spell
than those that were measured, and what spells differ by says how far that one may be off.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.timeline import Floats, Ints

LEAST = 3  # spells: the scatter of two hardly says anything
LEVEL = 0.95  # of the upper end: 90 % lie between two such ends


@dataclass(frozen=True, slots=True)
class Drift:
    """Standard deviation of the speed from one spell to the next (of logarithms), and of how many spells."""

    size: float = 0.0
    spells: int = 0

    @property
    def reach(self) -> float:
        """How far another spell may be from the mean of these: 90 %, as a logarithm."""
        from scipy.special import stdtrit

        if self.spells < LEAST:
            return 0.0
        return float(stdtrit(self.spells - 1, LEVEL)) * self.size * float(np.sqrt(1 + 1 / self.spells))


def drift(spells: Sequence[int] | Ints, seconds: Floats, fitted: Floats) -> Drift:
    """Of calls whose spell is known (from 1), what they took and what a fit says of them."""
    held = np.asarray(spells)
    known = held > 0
    numbers, places = np.unique(held[known], return_inverse=True)
    if len(numbers) < LEAST:
        return Drift()
    took, said = (np.bincount(places, of[known]) for of in (seconds, fitted))
    return Drift(float(np.log(took / said).std(ddof=1)), len(numbers))
