"""What another engine's on-demand would cost per minibatch to explain its published speedups, judged on those left out.

One number of seconds for an engine on one node, and one on several: the median of what its cells need, those of the
setting that is judged left out. A setting is a model on lengths with so many samples per device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reproduce_paper import Cell, Place

Pair = tuple[str, str]
REFERENCE = ("lb-micro", "collective")
ENGINES = {"a100": "ODC", "mi300x": "AMD's port"}


@dataclass(frozen=True, slots=True)
class Charged:
    """A published speedup beside ours with the seconds that the engine's other settings need."""

    cell: "Cell"
    group: str
    needed: float  # seconds of a minibatch that would give the published speedup
    seconds: float  # of the other settings
    ours: float

    @property
    def points(self) -> float:
        return 100 * (self.ours - self.cell.published)


def charged(
    cells: Sequence["Cell"],
    seconds: Callable[["Place"], Mapping[Pair, float]],
    again: Callable[["Place", float], Mapping[Pair, float]],
) -> list[Charged]:
    """`seconds`: of a minibatch by (balancer, sync); `again`: the same where on-demand costs so much more."""
    groups: dict[str, list[tuple[Cell, float]]] = {}
    for cell in cells:
        if cell.place is not None and cell.kind == "speedup" and not cell.stated and cell.held[1] == "on-demand":
            known = seconds(cell.place)
            needed = known[REFERENCE] / cell.published - known[cell.held]
            groups.setdefault(_group(cell.place), []).append((cell, needed))
    return [_judged(cell, group, needed, every, again) for group, every in groups.items() for cell, needed in every]


def _group(place: "Place") -> str:
    return f"{ENGINES[place.gpu]}, {'several nodes' if place.nodes > 1 else 'one node'}"


def _judged(
    cell: "Cell",
    group: str,
    needed: float,
    every: Sequence[tuple["Cell", float]],
    again: Callable[["Place", float], Mapping[Pair, float]],
) -> Charged:
    assert cell.place is not None
    others = [other for one, other in every if one.place != cell.place]
    cost = max(0.0, median(others)) if others else 0.0
    known = again(cell.place, cost)
    return Charged(cell, group, needed, cost, known[REFERENCE] / known[cell.held])
