"""The rule of memory: what fits, what is tight, what does not fit, and what is chosen from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.results import capacity
from odcsim.results.capacity import FITS, OVER, TIGHT, Need

GB = 1e9


@pytest.mark.parametrize(
    ("used", "limit", "level", "words"),
    [
        (78.0, 86.0, FITS, "78 of 86 GB"),
        (79.12, 86.0, FITS, "79 of 86 GB"),
        (79.13, 86.0, TIGHT, "79 of 86 GB: tight"),
        (85.8, 86.0, TIGHT, "85.8 of 86.0 GB: tight"),
        (86.1, 86.0, OVER, "86.1 of 86.0 GB"),
        (96.0, None, FITS, "96 GB"),
    ],
)
def test_up_to_92_percent_fits_and_from_there_to_all_is_tight(used, limit, level, words):
    need = Need(used * GB, None if limit is None else limit * GB)
    assert capacity.level(need) == level
    assert capacity.told(need) == words


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=8))
def test_what_is_chosen_from_has_the_best_level_and_nothing_of_it_is_left_out(shares):
    every = [Need(share, 1.0) for share in shares]
    some = capacity.roomiest(every)
    best = min(map(capacity.level, every))
    assert some == [one for one in every if capacity.level(one) == best]
    if any(share <= 0.92 for share in shares):
        assert max(one.memory_bytes for one in some) <= 0.92


def test_nobody_is_chosen_from_where_nobody_is():
    assert capacity.roomiest([]) == []
