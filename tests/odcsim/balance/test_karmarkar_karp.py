import numpy as np
import pytest
from draws import chat, clipped, cost, longalign, swe
from hypothesis import given, settings
from hypothesis import strategies as st
from textbook import textbook

from odcsim.balance.partition import as_lists, differencing, differencing_equal, differencing_many

# Small whole numbers make ties in spread common, which is where two implementations would part ways.
weights = st.one_of(
    st.lists(st.integers(0, 12).map(float), min_size=1, max_size=60),
    st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=60),
).map(lambda drawn: sorted(drawn, reverse=True))


def sums(groups, weights):
    return sorted(sum(weights[i] for i in group) for group in groups)


def is_the_textbooks(weights, parts):
    equal = as_lists(differencing_equal(np.array(weights), parts), len(weights))
    free = [differencing(weights, parts)]
    if 1 < parts < len(weights):  # in arrays, too
        free.append(as_lists(differencing_many(np.array(weights), parts), len(weights)))
    for groups, alike in ((equal, True), *((groups, False) for groups in free)):
        assert sums(groups, weights) == pytest.approx(textbook(weights, parts, equal=alike), rel=1e-12)
        assert len(groups) == parts
        assert sorted(i for group in groups for i in group) == list(range(len(weights)))
    counts = [len(group) for group in equal]
    assert max(counts) - min(counts) <= (len(weights) % parts > 0)


@given(weights, st.integers(1, 12))
@settings(max_examples=200)
def test_splits_are_those_of_the_textbook(weights, parts):
    is_the_textbooks(weights, parts)
    groups = differencing(weights, parts)
    assert sum(not group for group in groups) == max(0, parts - len(weights))
    loads = sums(groups, weights)
    assert loads[-1] - loads[0] <= weights[0] * (1 + 1e-9)


@pytest.mark.parametrize("draw", [longalign, swe, chat, clipped])
@pytest.mark.parametrize(("devices", "samples"), [(8, 4), (8, 16), (64, 8), (512, 6), (64, 40)])
def test_so_they_are_on_real_shapes(draw, devices, samples):
    """With long runs of samples for one state and with short ones."""
    is_the_textbooks(np.sort(cost(draw(1, devices * samples)))[::-1].tolist(), devices)


TIED = [
    ([9.0, 6.0, 5.0, 5.0, 4.0, 4.0, 4.0], [10.0, 13.0, 14.0]),
    ([9.0, 8.0, 7.0, 7.0, 4.0, 3.0, 2.0], [12.0, 14.0, 14.0]),
    ([9.0, 8.0, 7.0, 6.0, 6.0, 4.0, 3.0, 2.0], [15.0, 15.0, 15.0]),
    ([8.0, 7.0, 6.0, 5.0, 4.0], [8.0, 11.0, 11.0]),  # by hand: 8 | 7 + 4 | 6 + 5
]


@pytest.mark.parametrize(("tied", "expected"), TIED)
def test_among_equal_spreads_the_state_made_last_goes_first(tied, expected):
    assert textbook(tied, 3) == expected
    for groups in (differencing(tied, 3), as_lists(differencing_many(np.array(tied), 3), len(tied))):
        assert sums(groups, tied) == expected
