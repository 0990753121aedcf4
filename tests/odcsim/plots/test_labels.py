"""No name covers another, a point, or the end of the picture; and whose has room gets it."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from odcsim.plots.labels import around, beside, places

ROOM = (620.0, 360.0)
POINT = st.tuples(st.floats(0, ROOM[0]), st.floats(0, ROOM[1]))
NAMED = st.lists(st.tuples(POINT, st.text("8x h100", min_size=1, max_size=12)), min_size=1, max_size=20)


@given(NAMED)
def test_nothing_covers_anything(named):
    points, names = [point for point, _ in named], [name for _, name in named]
    found = places(points, names, ROOM)
    boxes = [beside(*p, name, place) for p, name, place in zip(points, names, found, strict=True) if place]
    assert not any(one.over(other) for one, other in combinations(boxes, 2))
    assert all(box.left >= 0 and box.right <= ROOM[0] and box.bottom >= 0 and box.top <= ROOM[1] for box in boxes)
    for point, name, place in zip(points, names, found, strict=True):
        others = [other for other in points if other is not point]
        assert not place or not any(beside(*point, name, place).over(around(*other)) for other in others)


def test_one_alone_has_its_name_and_many_at_one_place_do_not_all():
    assert places([(300, 200)], ["8 x h100"], ROOM) == ["top right"]
    assert places([(610, 200)], ["8 x h100"], ROOM) == ["top left"]
    assert "" in places([(300 + n, 200) for n in range(9)], ["8 x h100"] * 9, ROOM)
