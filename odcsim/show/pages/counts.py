"""How many devices idle and how many transfers are in flight at each moment, as counters of a trace."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from odcsim.results.metrics import PARTS
from odcsim.results.slices import Slice
from odcsim.show.pages.events import nanoseconds

IDLE = {*PARTS, "overhead", "optimizer", "publish", "meeting"}  # all but compute


def idle(lanes: Iterable[Sequence[Slice]]) -> Iterator[tuple[int, int]]:
    """Times and how many devices compute nothing from then on, of their compute lanes."""
    return _running(s for lane in lanes for s in lane if s.kind in IDLE)


def in_flight(lanes: Iterable[Sequence[Slice]], kind: str) -> Iterator[tuple[int, int]]:
    """Times and how many transfers of a kind move bytes from then on."""
    return _running(s for lane in lanes for s in lane if s.kind == kind)


def _running(slices: Iterable[Slice]) -> Iterator[tuple[int, int]]:
    changes = [(nanoseconds(t), d) for s in slices for t, d in ((s.start, 1), (s.end, -1))]
    now, told = 0, -1
    for at, of in groupby(sorted([(0, 0), *changes]), key=lambda change: change[0]):
        now += sum(change for _, change in of)
        if now != told:
            yield at, now
            told = now
