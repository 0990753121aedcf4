import numpy as np
import pytest
from draws import chat, clipped, cost, longalign, swe
from hypothesis import given, settings
from hypothesis import strategies as st
from textbook import textbook

from odcsim.heuristics import karmarkar_karp
from odcsim.heuristics.karmarkar_karp import differencing, differencing_equal

# No deadline: a busy machine is no failure.
few, many = settings(max_examples=40, deadline=None), settings(max_examples=200, deadline=None)

# Small whole numbers make ties in spread common, which is where two implementations would part ways.
weights = st.one_of(
    st.lists(st.integers(0, 12).map(float), min_size=1, max_size=60),
    st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=60),
).map(lambda drawn: sorted(drawn, reverse=True))
parts = st.integers(1, 12)


def sums(groups, weights):
    return sorted(sum(weights[i] for i in group) for group in groups)


@pytest.fixture(params=["lists", "arrays"], autouse=True, scope="module")
def form(request):
    """States are in lists for few parts or samples and in arrays for many; here in both whatever the size."""
    size = 0 if request.param == "arrays" else 2**63
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(karmarkar_karp, "MANY", size)
        patch.setattr(karmarkar_karp, "WIDE", size)
        yield


@given(weights, parts)
@many
def test_sums_are_those_of_the_textbook(weights, parts):
    assert sums(differencing(weights, parts), weights) == pytest.approx(textbook(weights, parts), rel=1e-12)


@given(weights, parts)
@many
def test_sums_with_equal_counts_are_those_of_the_textbook(weights, parts):
    expected = textbook(weights, parts, equal=True)
    assert sums(differencing_equal(weights, parts), weights) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("draw", [longalign, swe, chat])
@pytest.mark.parametrize(("devices", "samples"), [(8, 4), (8, 16), (64, 8)])
def test_sums_are_those_of_the_textbook_on_real_shapes(draw, devices, samples):
    drawn = np.sort(cost(draw(1, devices * samples)))[::-1].tolist()
    assert sums(differencing(drawn, devices), drawn) == pytest.approx(textbook(drawn, devices), rel=1e-12)
    expected = textbook(drawn, devices, equal=True)
    assert sums(differencing_equal(drawn, devices), drawn) == pytest.approx(expected, rel=1e-12)


@given(weights, parts)
@few
def test_every_sample_is_in_one_part(weights, parts):
    for split in (differencing, differencing_equal):
        groups = split(weights, parts)
        assert len(groups) == parts
        assert sorted(i for group in groups for i in group) == list(range(len(weights)))


@given(weights, parts)
@few
def test_counts_are_equal_within_one_where_promised(weights, parts):
    counts = [len(group) for group in differencing_equal(weights, parts)]
    assert max(counts) - min(counts) <= (len(weights) % parts > 0)


@given(weights, parts)
@few
def test_no_part_is_empty_while_there_are_samples_enough(weights, parts):
    assert sum(not group for group in differencing(weights, parts)) == max(0, parts - len(weights))


@given(weights, parts)
@few
def test_parts_spread_no_more_than_the_heaviest_sample(weights, parts):
    loads = sums(differencing(weights, parts), weights)
    assert loads[-1] - loads[0] <= weights[0] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("tied", "expected"),
    [
        ([9.0, 6.0, 5.0, 5.0, 4.0, 4.0, 4.0], [10.0, 13.0, 14.0]),
        ([9.0, 8.0, 7.0, 7.0, 4.0, 3.0, 2.0], [12.0, 14.0, 14.0]),
        ([9.0, 8.0, 7.0, 6.0, 6.0, 4.0, 3.0, 2.0], [15.0, 15.0, 15.0]),
    ],
)
def test_among_equal_spreads_the_state_made_last_goes_first(tied, expected):
    assert textbook(tied, 3) == expected
    assert sums(differencing(tied, 3), tied) == expected


def test_a_case_worked_by_hand():
    # 8, 7 and 6 open three parts; 5 and 4 join the lightest ones: 8 | 7 + 4 | 6 + 5.
    assert sums(differencing([8.0, 7.0, 6.0, 5.0, 4.0], 3), [8.0, 7.0, 6.0, 5.0, 4.0]) == [8.0, 11.0, 11.0]


def by_form(split, weights, parts):
    """By states in lists, and in arrays."""
    for size in (2**63, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(karmarkar_karp, "MANY", size)
            patch.setattr(karmarkar_karp, "WIDE", size)
            yield split(weights, parts)


@given(weights, parts)
@many
def test_of_equal_counts_both_forms_are_alike_to_the_last_sample(weights, parts):
    """And to the order of samples, by which some pack them."""
    lists, arrays = by_form(differencing_equal, weights, parts)
    assert arrays == lists


@pytest.mark.parametrize("draw", [longalign, swe, chat, clipped])
@pytest.mark.parametrize(("devices", "samples"), [(512, 6), (64, 40)])
def test_of_many_parts_both_forms_have_the_same_sums(draw, devices, samples):
    """Of sizes at which arrays are used, with long runs of samples for one state and with short ones."""
    drawn = np.sort(cost(draw(2, devices * samples)))[::-1].tolist()
    lists, arrays = by_form(differencing, drawn, devices)
    assert sums(arrays, drawn) == pytest.approx(sums(lists, drawn), rel=1e-12)
    lists, arrays = by_form(differencing_equal, drawn, devices)
    assert arrays == lists
