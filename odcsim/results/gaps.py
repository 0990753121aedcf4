"""What the start of a compute step may have waited for: the one rule by which gaps of the compute lane are told apart.

`metrics` sums by it over many devices at once, `slices` draws by it what one device did.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.program import COMPUTE, Program, by_steps
from odcsim.timeline import Floats


@dataclass(frozen=True, slots=True)
class Gap:
    """Before a step of the compute lane; before those of other lanes nothing is waited for."""

    before: int  # the step before it on the compute lane, or -1
    transfers: tuple[int, ...]  # what it may have waited for: of several at once in flight the first has the gap
    last: bool  # nothing follows in its lane


@by_steps
def gaps(program: Program) -> tuple[Gap, ...]:
    """The gap before every step.

    A lane works in order, so a step may have waited for the transfers it comes after, and for those before them in
    their lanes that no earlier step of the compute lane came after. In each lane the latest comes first.
    """
    lanes: dict[str, list[int]] = {}
    place: list[int] = []
    covered: dict[str, int] = {}
    gaps = []
    ends = {step.lane: i for i, step in enumerate(program.steps)}.values()
    before = -1
    for i, step in enumerate(program.steps):
        lane = lanes.setdefault(step.lane, [])
        place.append(len(lane))
        lane.append(i)
        transfers: list[int] = []
        if step.lane == COMPUTE:
            # Gathers first: where a gather and a push were in flight at once, the gap counts as the gather's.
            for need in sorted(step.after, key=lambda n: program.steps[n].kind != "gather"):
                of = program.steps[need].lane
                transfers += reversed(lanes[of][covered.get(of, 0) : place[need] + 1])
                covered[of] = max(covered.get(of, 0), place[need] + 1)
        gaps.append(Gap(before, tuple(transfers), i in ends))
        before = i if step.lane == COMPUTE else before
    return tuple(gaps)


def begun(asked: Floats) -> Floats:
    """When a meeting stopped waiting: its last device had asked. Times [..., device]."""
    times: Floats = asked.max(axis=-1, keepdims=True)
    return times


def uncovered(start: Floats, end: Floats, spans: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Seconds from `start` to `end` that no span, (begin, end), covers; spans may overlap."""
    if not spans:
        return np.maximum(end - start, 0.0)
    asked, had = (np.stack([span[k] for span in spans]) for k in (0, 1))
    order = np.argsort(asked, axis=0)
    asked, had = (np.take_along_axis(times, order, axis=0) for times in (asked, had))
    reached = np.maximum.accumulate(np.concatenate([start[None], had]), axis=0)
    until = np.minimum(np.concatenate([asked, end[None]]), end)
    seconds: Floats = np.maximum(until - reached, 0.0).sum(axis=0)
    return seconds
