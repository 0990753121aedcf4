"""An axis holds what it is of, with ticks to read it by, and is no longer than that needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.plots.axis import NEAR, axis

VALUES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12)


@given(VALUES, st.none() | st.floats(1e-6, 1e9))
def test_it_holds_all_that_lies_on_it_and_at_least_two_ticks(values, mark):
    made = axis(values, mark)
    assert all(0 < made.at(value) < 1 for value in values)
    assert made.at(made.low) == pytest.approx(0, abs=1e-9)
    assert made.at(made.high) == pytest.approx(1)
    assert len(made.ticks) >= 2
    assert all(made.holds(tick) or tick == pytest.approx(made.high) for tick in made.ticks)
    assert len(set(made.shown()["ticktext"])) == len(made.ticks)


@given(VALUES, st.floats(1e-6, 1e9))
def test_a_mark_is_on_it_where_it_is_near(values, mark):
    near = min(values) / NEAR <= mark <= max(values) * NEAR
    assert axis(values, mark).holds(mark) or not near
    if not near:
        assert axis(values, mark) == axis(values)


@given(st.lists(st.floats(0, 1e6), max_size=9))
def test_where_something_is_nothing_it_goes_by_even_steps(values):
    made = axis([0.0, *values])
    assert made.shown()["type"] == "linear"
    assert all(0 <= made.at(value) < 1 for value in values)
