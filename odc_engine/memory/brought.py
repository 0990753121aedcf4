"""Which units the devices of a node have brought in since weights were published last: each tells all, unit by unit,
and who gathers a unit waits for its node."""

import time
from collections.abc import Sequence

from torch import Tensor

from odc_engine.backends.base import PeerMemory
from odc_engine.backends.patience import Patience
from odc_engine.errors import PeerLost

RETRY = 50e-6  # seconds from one look to the next ...
AT_ONCE = 50  # ... after so many without a pause


class Brought:
    """`rows`: of each device of the node, in its arena, a row for each unit: 32 bits for each device that brings it.
    They count publications, and are nobody's before the first. `first`: of the node's devices."""

    def __init__(self, memory: PeerMemory, rows: Sequence[Tensor], first: int) -> None:
        self._memory, self.rows, self.first = memory, rows, first
        self._place = memory.rank - first
        self._round = 0
        rows[self._place].zero_()

    def begin(self) -> None:
        """Weights are published: what was brought in before is old."""
        self._round += 1

    def tell(self, unit: int) -> None:
        """This device has brought its part of a unit in."""
        for row in self.rows:
            row[unit, self._place] = self._round

    def wait_for(self, unit: int) -> None:
        """Return when the node has all of it, at once where nothing is brought in ahead. Raises PeerLost."""
        patience, looks, mine = Patience(), 0, self.rows[self._place][unit]
        while self._round and (late := (mine < self._round).nonzero().flatten().tolist()):
            self._memory.check()
            if over := patience.over(self._memory, [self.first + place for place in late]):
                raise self._late(late, over)
            looks += 1
            if looks > AT_ONCE:
                time.sleep(RETRY)

    def check(self) -> None:
        """Raise PeerLost where one has been waited for in vain. Where devices meet, after they have."""

    def _late(self, places: Sequence[int], over: float) -> PeerLost:
        who = [self.first + place for place in places]
        return self._memory.silent(who, f"brought nothing in within {over:g} s")
