"""A picture of what time costs: each offer by hours and dollars, and the front that nothing beats in both.

Axes are as long as offers need: a deadline or a budget that is far out is told in words. No name covers another or a
point: who finds no room has none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go

from odcsim.plots.style import BLUE, GREY, INK, figure
from odcsim.support.numbers import duration

HEIGHT, ROOM = 460, (620.0, 360.0)  # pixels that names are sure to have; on a telephone page.css leaves the taken one's
FREE = 0.08  # of an axis, at each end
NEAR = 1.5  # times the ends: a mark within lengthens the axis, and one beyond is not on it
FEW = 3  # ticks of a logarithmic axis, at least
LETTER, LINE, POINT = 8.0, 18.0, 8.0  # pixels: of a letter's width, of a name's height, around a point
PLACES = ("top right", "bottom right", "top left", "bottom left", "middle right", "middle left")


@dataclass(frozen=True, slots=True)
class Priced:
    """A point of the picture, with the factors of its 90 % interval."""

    name: str
    seconds: float
    spent: float
    low: float
    high: float
    taken: bool = False  # it is the one to take

    @property
    def hours(self) -> float:
        return self.seconds / 3600


def front(points: Sequence[Priced]) -> list[Priced]:
    """Those that no other beats in time and in money, the fastest first."""
    kept: list[Priced] = []
    for point in sorted(points, key=lambda p: (p.seconds, p.spent)):
        if not kept or point.spent < kept[-1].spent:
            kept.append(point)
    return kept


def pareto(
    points: Sequence[Priced], unit: str, *, deadline: float | None = None, budget: float | None = None
) -> go.Figure:
    """`unit` of what is spent: dollars or GPU-hours; the deadline is in seconds."""
    best, late = front(points), None if deadline is None else deadline / 3600  # hours
    across = axis([p.hours * factor for p in points for factor in (p.low, p.high)], late)
    up = axis([p.spent * factor for p in points for factor in (p.low, p.high)], budget)
    beyond = [] if deadline is None or across.holds(deadline / 3600) else [f"the deadline, {duration(deadline)}"]
    beyond += [] if budget is None or up.holds(budget) else [f"the budget, {budget:,.10g} {unit}"]
    words = "bars are 90 % intervals; the line joins options that no other beats in both time and cost"
    words += f"; beyond the axes: {' and '.join(beyond)}" if beyond else ""
    drawn = figure("What does time cost?", words, x="hours of the whole run", y=unit, height=HEIGHT)
    hours, spent = [p.hours for p in best], [p.spent for p in best]
    line = {"mode": "lines", "line": {"color": BLUE, "width": 2, "dash": "dot"}, "hoverinfo": "skip"}
    drawn.add_scatter(x=hours, y=spent, name="no option is both faster and cheaper", **line)
    # The name of the one to take finds its place before the others, and the front's before those that are beaten.
    ordered = sorted(dict.fromkeys(points), key=lambda p: (not p.taken, p not in best))
    pixels = [(across.at(p.hours) * ROOM[0], up.at(p.spent) * ROOM[1]) for p in ordered]
    where = dict(zip(ordered, places(pixels, [p.name for p in ordered], ROOM), strict=True))
    for name, colour, on in (("on the front", BLUE, True), ("beaten in both", GREY, False)):
        if some := [p for p in points if (p in best) is on]:
            names = [f"<b>{escape(p.name)}</b>" if p.taken else escape(p.name) for p in some]
            drawn.add_scatter(
                x=[p.hours for p in some],
                y=[p.spent for p in some],
                error_x=_bars(some, [p.hours for p in some]),
                error_y=_bars(some, [p.spent for p in some]),
                mode="markers+text",
                text=[words if where[p] else "" for p, words in zip(some, names, strict=True)],
                textposition=[where[p] or "top right" for p in some],
                marker={"color": colour, "size": [15 if p.taken else 10 for p in some]},
                name=name,
                customdata=[[words, duration(p.seconds)] for p, words in zip(some, names, strict=True)],
                hovertemplate=f"%{{customdata[0]}}: %{{customdata[1]}}, %{{y:,.0f}} {unit}<extra></extra>",
            )
    dashed = {"mode": "lines", "line": {"color": INK, "width": 1.5, "dash": "dash"}, "hoverinfo": "name"}
    if late is not None and across.holds(late):
        drawn.add_scatter(x=(late, late), y=(up.low, up.high), name="deadline", **dashed)
    if budget is not None and up.holds(budget):
        drawn.add_scatter(x=(across.low, across.high), y=(budget, budget), name="budget", **dashed)
    return drawn.update_xaxes(across.shown()).update_yaxes(up.shown())


def _bars(points: Sequence[Priced], values: Sequence[float]) -> dict[str, Any]:
    above = [v * (p.high - 1) for p, v in zip(points, values, strict=True)]
    below = [v * (1 - p.low) for p, v in zip(points, values, strict=True)]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "width": 3}


@dataclass(frozen=True, slots=True)
class Axis:
    """From end to end, by factors unless something on it is nothing."""

    low: float
    high: float

    @property
    def by_factors(self) -> bool:
        return self.low > 0

    def at(self, value: float) -> float:
        """Where that is: 0 at the low end, 1 at the high one."""
        low, high, here = (self._moved(x) for x in (self.low, self.high, value))
        return (here - low) / (high - low)

    def _moved(self, value: float) -> float:
        return math.log10(value) if self.by_factors else value

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def ticks(self) -> list[float]:
        """1, 2, 5, 10, ... or even steps, where there would be few of those."""
        if self.by_factors:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            inside = [at for power in powers for at in _from(power) if self.holds(at)]
            if len(inside) >= FEW:
                return inside
        most = (self.high - self.low) / FEW
        step = max(at for at in _from(math.floor(math.log10(most))) if at <= most)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def shown(self) -> dict[str, Any]:
        """For plotly."""
        ends, texts = [self._moved(self.low), self._moved(self.high)], [f"{n:,.10g}" for n in self.ticks]
        kind = "log" if self.by_factors else "linear"
        return {"type": kind, "range": ends, "tickvals": self.ticks, "ticktext": texts}


def _from(power: int) -> list[float]:
    return [float(f"{digit}e{power}") for digit in (1, 2, 5)]


def axis(values: Sequence[float], mark: float | None = None) -> Axis:
    """Of these values, and of a mark where that is near."""
    low, high = min(values), max(values)
    if mark is not None and low / NEAR <= mark <= high * NEAR:
        low, high = min(low, mark), max(high, mark)
    if low <= 0:
        return Axis(0.0, (high or 1.0) * (1 + FREE))
    room = max(high / low, 1.1) ** FREE
    return Axis(low / room, high * room)


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def over(self, other: "Box") -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        return across > 0 and min(self.top, other.top) - max(self.bottom, other.bottom) > 0


def around(x: float, y: float) -> Box:
    return Box(x - POINT, y - POINT, x + POINT, y + POINT)


def beside(x: float, y: float, name: str, place: str) -> Box:
    """A name's box, by plotly's word for its place."""
    up, side = place.split()
    left = x + POINT if side == "right" else x - POINT - LETTER * len(name)
    bottom = {"top": y + POINT, "middle": y - LINE / 2, "bottom": y - POINT - LINE}[up]
    return Box(left, bottom, left + LETTER * len(name), bottom + LINE)


def places(points: Sequence[tuple[float, float]], names: Sequence[str], room: tuple[float, float]) -> list[str]:
    """Where each name goes, the first before the others; "" where it finds no room. All in pixels."""
    full, chosen = [around(x, y) for x, y in points], []
    for number, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        others = full[:number] + full[number + 1 :]
        for place in PLACES:
            box = beside(x, y, name, place)
            inside = box.left >= 0 and box.bottom >= 0 and box.right <= room[0] and box.top <= room[1]
            if inside and not any(box.over(other) for other in others):
                full.append(box)
                chosen.append(place)
                break
        else:
            chosen.append("")
    return chosen
