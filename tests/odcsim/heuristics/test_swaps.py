import numpy as np
import pytest
from draws import cost, longalign
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.heuristics.karmarkar_karp import differencing, differencing_equal
from odcsim.heuristics.swaps import MANY, _lightest_first, _Lists, _one_by_one, even_out
from odcsim.heuristics.trades import laid, listed

many = settings(max_examples=100)


@st.composite
def dealt(draw):
    """Samples, heaviest first, dealt to devices as they come: few devices, or enough for the paired rounds."""
    devices = draw(st.sampled_from([1, 2, 3, 8, MANY, MANY + 7]))
    weights = draw(st.lists(st.floats(0.01, 100), min_size=devices, max_size=4 * devices))
    weights.sort(reverse=True)
    return [list(range(device, len(weights), devices)) for device in range(devices)], weights


def loads(groups, weights):
    return [sum(weights[i] for i in group) for group in groups]


@given(dealt())
@many
def test_the_range_of_loads_only_narrows_and_no_sample_is_lost(case):
    groups, weights = case
    before, after = loads(groups, weights), loads(even := even_out(groups, weights), weights)
    assert max(after) <= max(before) * (1 + 1e-12)
    assert min(after) >= min(before) * (1 - 1e-12)
    assert sorted(i for group in even for i in group) == list(range(len(weights)))
    counts = [len(group) for group in even]
    assert max(counts) - min(counts) <= (len(weights) % len(groups) > 0)


@given(dealt())
@many
def test_one_by_one_lists_are_made_of_those_that_trade_alone(case):
    groups, weights = case
    held, plain = laid(groups, len(weights)), [list(group) for group in groups]
    few = _Lists(held, len(weights))
    for lists in (plain, few):
        _one_by_one(lists, loads(groups, weights), weights, 1e-3)
    assert listed(few.written(), len(weights)) == plain


def spread_after(*devices):
    """The loads and counts that swaps leave, for devices given by the weights they hold."""
    order = sorted(((weight, at) for at, device in enumerate(devices) for weight in device), reverse=True)
    weights = [weight for weight, _ in order]
    even = even_out([[i for i, (_, at) in enumerate(order) if at == here] for here in range(len(devices))], weights)
    return loads(even, weights), [len(group) for group in even]


@pytest.mark.parametrize("others", [0, MANY])
def test_trades_that_must_be_found(others):
    """A device with more samples may give one for nothing, and one with no more may not."""
    assert set(spread_after([4.0, 4.0], [2.0, 2.0], *[[3.0, 3.0]] * others)[0]) == {6.0}
    assert spread_after([3.0, 3.0, 2.0], [4.0], *[[6.0]] * others)[0][:2] == [6.0, 6.0]
    counts = spread_after([10.0, 2.0], [5.0, 3.0], [4.0, 3.0, 3.0], *[[5.0, 5.0]] * others)[1]
    assert sorted(counts) == [2] * (2 + others) + [3]


def test_equal_counts_become_as_even_as_free_ones_at_eight_samples_per_device():
    weights = np.sort(cost(longalign(3, 512)))[::-1].tolist()
    rough, free, mean = differencing_equal(weights, 64), differencing(weights, 64), sum(weights) / 64
    assert max(loads(rough, weights)) > 1.05 * mean
    assert all(max(loads(even_out(groups, weights), weights)) < 1.001 * mean for groups in (rough, free))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_devices_stand_by_their_loads_and_numbers_whatever_order_they_come_from(loads, random):
    before = random.sample(range(len(loads)), len(loads))
    found = _lightest_first(np.array(loads, dtype=float), np.array(before))
    assert found.tolist() == sorted(range(len(loads)), key=lambda device: (loads[device], device))
