"""Who waited for whom, as arrows between the slices of a trace for ui.perfetto.dev.

On a device from a gather to the compute that needed it, and from compute to the push of what it made. Between devices
from what the last of them was computing to those that waited for it where they meet. A one-sided gather has no arrow
from each device that it reads: it waits for none of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from odcsim.program import COMPUTE
from odcsim.results.slices import View
from odcsim.show.pages.events import Moment, nanoseconds


@dataclass(frozen=True, slots=True)
class Arrow:
    name: str
    source: Moment
    target: Moment


def arrows(seen: Sequence[View]) -> Iterator[Arrow]:
    """Of one minibatch, whose views are in the order of devices; times from its start."""
    for device, view in enumerate(seen):
        yield from _own(view, device)
    yield from _meetings(seen)


def _own(view: View, device: int) -> Iterator[Arrow]:
    ran = set(view.steps)
    for i in view.steps:
        step = view.program.steps[i]
        for j in step.after:
            before = view.program.steps[j]
            if j not in ran or before.lane == step.lane or not (before.kind == "gather" or step.kind == "push"):
                continue
            lengths = [nanoseconds(view.had[k]) - nanoseconds(view.begun[k]) for k in (i, j)]
            if min(lengths) > 0:  # what takes no time is not drawn
                source = Moment(device, before.lane, nanoseconds(view.had[j]) - 1)
                name = "gathered for" if before.kind == "gather" else "made"
                yield Arrow(name, source, Moment(device, step.lane, nanoseconds(view.begun[i])))


def _meetings(seen: Sequence[View]) -> Iterator[Arrow]:
    for i, step in enumerate(seen[0].program.steps):
        here = [device for device, view in enumerate(seen) if i in view.steps] if step.meets else []
        last = max(here, key=lambda device: float(seen[device].asked[i]), default=0)
        for device in here:
            arrived, came = nanoseconds(seen[device].asked[i]), nanoseconds(seen[device].begun[i])
            if came > arrived:
                yield Arrow("waited for", Moment(last, COMPUTE, came - 1), Moment(device, step.lane, came - 1))
