"""Trades between devices: swaps of samples by one cost, and under several scenarios."""

import numpy as np
import pytest
from draws import cost, longalign
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import swaps, trades
from odcsim.balance.partition import differencing, differencing_equal, hold, laid, listed, longest_first
from odcsim.balance.swaps import MANY, _lightest_first, _Lists, _one_by_one
from odcsim.balance.trades import relieve

many = settings(max_examples=100)


@st.composite
def owned(draw):
    """Samples in the hands of anybody, and what they weigh in one to three scenarios (units of their lower bound)."""
    devices = draw(st.integers(1, 12))
    count = draw(st.integers(1, 40))
    rows = draw(st.integers(1, 3))
    weights = draw(st.lists(st.floats(0, 100), min_size=rows * count, max_size=rows * count))
    owner = draw(st.lists(st.integers(0, devices - 1), min_size=count, max_size=count))
    found = np.array(weights).reshape(rows, count) + 1e-3
    return np.array(owner), devices, found / (found.sum(axis=1, keepdims=True) / devices)


def loads(held, weights):
    full = np.concatenate([weights, np.zeros((len(weights), 1))], axis=1)
    return full[:, held].sum(axis=2)


@given(owned())
@many
def test_the_worst_load_only_falls_and_no_sample_is_lost(case):
    owner, devices, weights = case
    before = hold(owner, devices)
    assert (before[:, -1] == len(owner)).all()  # an empty slot, behind what was owned, heaviest first
    for device, row in enumerate(before):
        there = row[row < len(owner)].tolist()
        assert there == np.flatnonzero(owner == device).tolist() == row[: len(there)].tolist()
    given_so = before.copy()
    after, top, _ = relieve(before, weights)
    assert (before == given_so).all()
    assert sorted(after[after < len(owner)]) == list(range(len(owner)))
    assert top == pytest.approx(loads(after, weights).max())
    assert top <= loads(before, weights).max() * (1 + 1e-6)


def worst(*scenarios):
    """The worst load after trades between devices given by the weights they hold, in each scenario alike."""
    sizes = [len(device) for device in scenarios[0]]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    weights = np.array([[weight for device in scenario for weight in device] for scenario in scenarios])
    return relieve(hold(owner, len(sizes)), weights).top


def test_trades_that_must_be_found_or_left():
    """Devices that are heavy in opposite scenarios trade with each other."""
    even, apart = [[1.2, 0.2], [0.3, 0.3]], [[1.2, 0.2], [0.4, 0.9]]
    for others in (0, 30):
        assert worst([[2 / 3, 2 / 3], [1 / 3, 1 / 3], *[[0.5, 0.5]] * others]) == pytest.approx(1)
    assert worst([[0.8, 0.3, 0.2], [0.7]]) == pytest.approx(1)  # given for nothing
    assert worst(even) == pytest.approx(1.2)
    assert worst(even, apart) == pytest.approx(1.4)  # what helps in one and harms more in another is left
    first, second = [[0.7, 0.5], [0.4, 0.4], [0.5, 0.5]], [[0.4, 0.4], [0.7, 0.5], [0.5, 0.5]]
    assert worst(first, second) < 1.15


@given(st.integers(0, 2**31), st.floats(0.1, 10))
def test_of_two_devices_of_unlike_speed_the_best_trade_is_made(seed, ratio):
    """One round, against every trade there is."""
    weights = np.sort(np.random.default_rng(seed).exponential(size=8))[::-1]
    owner, slow = np.arange(8) % 2, np.array([1 + ratio, 1 + 1 / ratio])  # so that time over all work is at least 1
    scaled = weights / weights.sum()

    def ends(give, take):
        new = owner.copy()
        new[[i for i in (give, take) if i < 8]] ^= 1
        return (np.bincount(new, scaled, 2) * slow).max()

    late = int((np.bincount(owner, scaled, 2) * slow).argmax())
    mine, theirs = ([*np.flatnonzero(owner == device), 8] for device in (late, 1 - late))
    best = min(ends(give, take) for give in mine for take in theirs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trades, "ROUNDS", 1)
        found = relieve(hold(owner, 2), scaled[None], slow)
    assert found.top == pytest.approx(max(best, 1), abs=1e-3)


def test_no_round_compares_more_trades_than_promised(monkeypatch):
    weights = np.sort(cost(longalign(0, 512)))[::-1]
    scaled = (weights / weights.sum() * 64)[None]
    seen = []

    def watched(held, weights, loads, heavy, light, slow):
        seen.append(light.size * held.shape[1] ** 2)
        return found(held, weights, loads, heavy, light, slow)

    found = trades._best
    monkeypatch.setattr(trades, "_best", watched)
    monkeypatch.setattr(trades, "TRADES", 1000)
    relieve(longest_first(weights, 64), scaled)
    assert seen
    assert max(seen) <= 1000


def even_out(groups, weights):
    """Of lists, in lists."""
    return listed(swaps.even_out(laid(groups, len(weights)), np.array(weights)), len(weights))


# Swaps.
@st.composite
def dealt(draw):
    """Samples, heaviest first, dealt to devices as they come: few devices, or enough for the paired rounds."""
    devices = draw(st.sampled_from([1, 2, 3, 8, MANY, MANY + 7]))
    weights = draw(st.lists(st.floats(0.01, 100), min_size=devices, max_size=4 * devices))
    weights.sort(reverse=True)
    return [list(range(device, len(weights), devices)) for device in range(devices)], weights


def sums(groups, weights):
    return [sum(weights[i] for i in group) for group in groups]


@given(dealt())
@many
def test_the_range_of_loads_only_narrows_and_no_sample_is_lost(case):
    groups, weights = case
    before, after = sums(groups, weights), sums(even := even_out(groups, weights), weights)
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
        _one_by_one(lists, sums(groups, weights), weights, 1e-3)
    assert listed(few.written(), len(weights)) == plain


def spread_after(*devices):
    """The loads and counts that swaps leave, for devices given by the weights they hold."""
    order = sorted(((weight, at) for at, device in enumerate(devices) for weight in device), reverse=True)
    weights = [weight for weight, _ in order]
    even = even_out([[i for i, (_, at) in enumerate(order) if at == here] for here in range(len(devices))], weights)
    return sums(even, weights), [len(group) for group in even]


@pytest.mark.parametrize("others", [0, MANY])
def test_swaps_that_must_be_found(others):
    """A device with more samples may give one for nothing, and one with no more may not. Equal counts become as even as
    free ones at eight samples per device."""
    assert set(spread_after([4.0, 4.0], [2.0, 2.0], *[[3.0, 3.0]] * others)[0]) == {6.0}
    assert spread_after([3.0, 3.0, 2.0], [4.0], *[[6.0]] * others)[0][:2] == [6.0, 6.0]
    counts = spread_after([10.0, 2.0], [5.0, 3.0], [4.0, 3.0, 3.0], *[[5.0, 5.0]] * others)[1]
    assert sorted(counts) == [2] * (2 + others) + [3]
    weights = np.sort(cost(longalign(3, 512)))[::-1].tolist()
    rough, mean = listed(differencing_equal(np.array(weights), 64), len(weights)), sum(weights) / 64
    assert max(sums(rough, weights)) > 1.05 * mean
    assert all(
        max(sums(even_out(groups, weights), weights)) < 1.001 * mean for groups in (rough, differencing(weights, 64))
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_devices_stand_by_their_loads_and_numbers_whatever_order_they_come_from(loads, random):
    before = random.sample(range(len(loads)), len(loads))
    found = _lightest_first(np.array(loads, dtype=float), np.array(before))
    assert found.tolist() == sorted(range(len(loads)), key=lambda device: (loads[device], device))
