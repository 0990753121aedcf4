"""Track which units the ranks of a node have fetched from other nodes since the last publication. A gather waits
until its node has all parts of the unit."""

import time
from collections.abc import Sequence

from torch import Tensor

from odc_engine.backends.base import PeerMemory
from odc_engine.backends.patience import Patience
from odc_engine.errors import PeerLost

RETRY = 50e-6  # seconds from one look to the next ...
AT_ONCE = 50  # ... after so many without a pause


class Brought:
    """`rows`: for each rank of the node, in its arena, a row per unit: 32 bits for each rank that fetches a part.

    They count publications, and are unset before the first. `first`: the node's first rank.
    """

    def __init__(self, memory: PeerMemory, rows: Sequence[Tensor], first: int) -> None:
        self._memory, self.rows, self.first = memory, rows, first
        self._place = memory.rank - first
        self._round = 0
        rows[self._place].zero_()

    def begin(self) -> None:
        """Begin a publication: what was fetched before is old."""
        self._round += 1

    def tell(self, unit: int) -> None:
        """Note that this rank has fetched its part of a unit."""
        for row in self.rows:
            row[unit, self._place] = self._round

    def wait_for(self, unit: int) -> None:
        """Wait until the node has all of the unit; without hierarchical transfers return at once. Raises PeerLost."""
        patience, looks, mine = Patience(), 0, self.rows[self._place][unit]
        while self._round and (late := (mine < self._round).nonzero().flatten().tolist()):
            self._memory.check()
            if over := patience.over(self._memory, [self.first + place for place in late]):
                raise self._late(late, over)
            looks += 1
            if looks > AT_ONCE:
                time.sleep(RETRY)

    def check(self) -> None:
        """Raise PeerLost if a rank was waited for in vain. Called after ranks have synchronized."""

    def _late(self, places: Sequence[int], over: float) -> PeerLost:
        who = [self.first + place for place in places]
        return self._memory.silent(who, f"fetched nothing from other nodes within {over:g} s")
