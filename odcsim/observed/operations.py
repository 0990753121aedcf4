"""Operations of a run's ranks, each with a beginning and an end, become pieces of a step that follow each other."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from odcsim.observed.run import NO, Doing, Track
from odcsim.timeline import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """A row for each. `names` are those of all kinds of operations, and `codes` places in it."""

    names: tuple[str, ...]
    codes: Ints
    steps: Ints
    ranks: Ints
    numbers: Ints  # among those of its name, in the rank's step
    microbatches: Ints
    begin: Floats
    end: Floats

    def only(self, rows: Any) -> "Operations":
        return Operations(self.names, *(getattr(self, f.name)[rows] for f in fields(self)[1:]))

    def ordered(self) -> "Operations":
        return self.only(np.lexsort((self.end, self.begin, self.ranks, self.steps)))

    def by(self, column: str) -> Iterator[tuple[int, "Operations"]]:
        """Of rows in the order of this column: those of each value."""
        values = getattr(self, column)
        starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        for begin, end in zip(starts, np.r_[starts[1:], len(values)], strict=True):
            yield int(values[begin]), self.only(slice(begin, end))


def track_of(
    rank: int,
    begin: Floats,
    end: Floats,
    kinds: Ints,
    meetings: Ints,
    microbatches: Ints,
    span: tuple[float, float],
    untold: Doing = Doing.HOST,
) -> Track:
    """What a rank did in a step that lasted for `span`. Where nothing is told, it did `untold`: the host is late."""
    edges = np.unique(np.r_[begin, end, span])
    owners = np.full(len(edges) - 1, NO)
    low, high = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    for i in np.lexsort((begin, -kinds)).tolist():  # the first of kinds is written last
        owners[low[i] : high[i]] = i
    new = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
    owners, edges = owners[new], np.r_[edges[new], edges[-1]]
    found = np.r_[kinds, untold][owners]  # the last stands for no owner
    worked = np.flatnonzero(owners != NO)
    if len(worked):
        found[: worked[0]] = found[worked[-1] + 1 :] = Doing.EDGE
    else:
        found[:] = Doing.EDGE
    return Track(rank, found, edges, np.r_[meetings, NO][owners], np.r_[microbatches, NO][owners])
