"""A rank's step cut into pieces without a hole, by what goes on in each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.observed.run import NO, Doing
from odcsim.observed.spans import Spans, clipped, within
from odcsim.timeline import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class CutStep:
    """As in Track, on the rank's own clock; meetings are the rank's own calls."""

    kinds: Ints
    edges: Floats
    calls: Ints
    microbatches: Ints


def cut(
    low: float,
    high: float,
    goings: Sequence[tuple[Doing, Spans]],
    meeting: Spans,
    met: Ints,
    microbatches: Spans,
    numbers: Ints,
) -> CutStep:
    """Where several go on at once, the first of Doing counts. `met`: the call of each span of `meeting`; `numbers`:
    the microbatch of each of `microbatches`."""
    parts = [(kind, clipped(spans, low, high)) for kind, spans in goings]
    here = clipped(meeting, low, high)
    sides = [side for _, spans in (*parts, (0, here), (0, clipped(microbatches, low, high))) for side in spans]
    edges = np.unique(np.concatenate(([low, high], *sides)))
    middles = (edges[:-1] + edges[1:]) / 2
    kinds = np.full(len(middles), int(Doing.HOST), np.int64)
    place = within(middles, meeting)
    for kind, spans in sorted((*parts, (Doing.MEETING, here)), key=lambda part: -part[0]):
        kinds[within(middles, spans) >= 0] = kind
    calls = np.where((kinds == Doing.MEETING) & (place >= 0), met[place] if len(met) else NO, NO)
    _mark_edges(kinds)
    owner = within(middles, microbatches)
    owners = np.where(owner >= 0, numbers[owner], NO) if len(numbers) else owner
    fresh = np.append(True, np.any(np.diff((kinds, calls, owners), axis=1) != 0, axis=0))
    return CutStep(kinds[fresh], np.append(edges[:-1][fresh], high), calls[fresh], owners[fresh])


def _mark_edges(kinds: Ints) -> None:
    working = np.flatnonzero(kinds <= Doing.STAGE)
    first, last = (working[0], working[-1]) if len(working) else (len(kinds), len(kinds))
    places = np.arange(len(kinds))
    kinds[(kinds == Doing.HOST) & ((places < first) | (places > last))] = Doing.EDGE
