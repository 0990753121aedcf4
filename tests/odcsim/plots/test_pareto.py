"""The picture of an advice: every offer, and a front that nothing beats in time and money."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.plots.pareto import Priced, front, pareto

POINTS = st.lists(st.builds(Priced, st.just("p"), *[st.integers(1, 9)] * 2, st.just(0.9), st.just(1.1)), min_size=1)


@given(POINTS)
def test_nothing_beats_the_front_and_the_front_beats_the_rest(points):
    best = front(points)
    for point in best:
        assert not any(p.seconds <= point.seconds and p.spent < point.spent for p in points)
        assert not any(p.seconds < point.seconds and p.spent <= point.spent for p in points)
    for point in points:
        assert any(p.seconds <= point.seconds and p.spent <= point.spent for p in best)


def picture(deadline, budget, *spent):
    """Two offers of two hours and two and a half."""
    points = [Priced("8 x a", 7200, spent[0], 0.9, 1.2, taken=True), Priced("9 x b", 9000, spent[1], 0.9, 1.2)]
    return pareto(points, "dollars", deadline=deadline, budget=budget)


def test_the_picture_has_every_offer_and_both_ends():
    drawn = picture(10_800, 60, 40, 50)
    marks = [trace for trace in drawn.data if trace.mode == "markers+text"]
    assert [list(trace.x) for trace in marks] == [[2.0], [2.5]]
    assert marks[0].error_y.array[0] == pytest.approx(8)
    lines = {trace.name: trace for trace in drawn.data if trace.mode == "lines"}
    assert set(lines["deadline"].x) == {3.0}
    assert set(lines["budget"].y) == {60}


def test_who_asks_for_much_more_moves_no_offer_together():
    """Offers take most of the picture, whatever deadline and budget are."""
    near, far, free = picture(None, None, 40, 50), picture(360_000, 9_000, 40, 50), picture(None, None, 0, 0)
    assert far.layout.xaxis.range == near.layout.xaxis.range
    assert far.layout.yaxis.range == near.layout.yaxis.range
    assert {trace.name for trace in far.data} == {trace.name for trace in near.data}
    assert (free.layout.yaxis.type, free.layout.xaxis.type) == ("linear", "log")
