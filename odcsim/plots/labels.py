"""Names beside points, where no name covers another or a point: who finds no room has none."""

from collections.abc import Sequence
from typing import NamedTuple

LETTER, LINE, POINT = 8.0, 18.0, 8.0  # pixels: of a letter's width, of a name's height, around a point
PLACES = ("top right", "bottom right", "top left", "bottom left", "middle right", "middle left")


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
    taken, found = [around(x, y) for x, y in points], []
    for number, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        others = taken[:number] + taken[number + 1 :]
        free = (place for place in PLACES if _free(beside(x, y, name, place), others, room))
        found.append(place := next(free, ""))
        if place:
            taken.append(beside(x, y, name, place))
    return found


def _free(box: Box, others: Sequence[Box], room: tuple[float, float]) -> bool:
    inside = box.left >= 0 and box.bottom >= 0 and box.right <= room[0] and box.top <= room[1]
    return inside and not any(box.over(other) for other in others)
