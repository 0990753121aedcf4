"""Trades between devices: swaps of samples by one cost, and under several scenarios."""

import numpy as np
import pytest
from draws import cost, longalign
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import refine
from odcsim.balance.partition import as_array, differencing, differencing_equal, longest_first, shares_of
from odcsim.balance.refine import MANY, _lightest_first, even_out, relieve, sums_of

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
    before = shares_of(owner, devices)
    assert (before[:, -1] == len(owner)).all()  # an empty slot, behind what was owned, heaviest first
    for device, row in enumerate(before):
        there = row[row < len(owner)].tolist()
        assert there == np.flatnonzero(owner == device).tolist() == row[: len(there)].tolist()
    given_so = before.copy()
    after = relieve(before, weights)
    assert (before == given_so).all()
    assert sorted(after[after < len(owner)]) == list(range(len(owner)))
    assert loads(after, weights).max() <= loads(before, weights).max() * (1 + 1e-6)


def worst(*scenarios):
    """The worst load after trades between devices given by the weights they hold, in each scenario alike."""
    sizes = [len(device) for device in scenarios[0]]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    weights = np.array([[weight for device in scenario for weight in device] for scenario in scenarios])
    return loads(relieve(shares_of(owner, len(sizes)), weights), weights).max()


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
    found = relieve(shares_of(owner, 2), scaled[None], slow, rounds=1)
    assert (loads(found, scaled[None]) * slow).max() == pytest.approx(max(best, 1), abs=1e-3)


def test_no_round_compares_more_trades_than_promised(monkeypatch):
    weights = np.sort(cost(longalign(0, 512)))[::-1]
    scaled = (weights / weights.sum() * 64)[None]
    seen = []

    def watched(held, weights, loads, heavy, light, slow, **how):
        seen.append(light.size * held.shape[1] ** 2)
        return found(held, weights, loads, heavy, light, slow, **how)

    found = refine._best
    monkeypatch.setattr(refine, "_best", watched)
    monkeypatch.setattr(refine, "TRADES", 1000)
    relieve(longest_first(weights, 64), scaled)
    assert seen
    assert max(seen) <= 1000


# Of one cost.
@st.composite
def dealt(draw):
    """Samples, heaviest first, dealt to devices as they come: few devices, or enough for trades in pairs."""
    devices = draw(st.sampled_from([1, 2, 3, 8, MANY, MANY + 7]))
    weights = draw(st.lists(st.floats(0.01, 100), min_size=devices, max_size=4 * devices))
    weights.sort(reverse=True)
    return [list(range(device, len(weights), devices)) for device in range(devices)], np.array(weights)


def sums(held, weights):
    return np.append(weights, 0.0)[held].sum(axis=1)


@given(dealt())
@many
def test_the_range_of_loads_only_narrows_and_no_sample_is_lost(case):
    groups, weights = case
    held = as_array(groups, len(weights))
    given_so = held.copy()
    even = even_out(held, weights)
    assert (held == given_so).all()
    before, after = sums(held, weights), sums(even, weights)
    assert after.max() <= before.max() * (1 + 1e-12)
    assert after.min() >= before.min() * (1 - 1e-12)
    assert sums_of(even, weights) == pytest.approx(after)
    assert sorted(even[even < len(weights)]) == list(range(len(weights)))
    counts = (even < len(weights)).sum(axis=1)
    assert counts.max() - counts.min() <= (len(weights) % len(groups) > 0)


def evened(*devices):
    """The loads and counts that trades leave, for devices given by the weights they hold."""
    order = sorted(((weight, at) for at, device in enumerate(devices) for weight in device), reverse=True)
    weights = np.array([weight for weight, _ in order])
    groups = [[i for i, (_, at) in enumerate(order) if at == here] for here in range(len(devices))]
    even = even_out(as_array(groups, len(weights)), weights)
    return sums(even, weights).tolist(), (even < len(weights)).sum(axis=1).tolist()


@pytest.mark.parametrize("others", [0, MANY])
def test_trades_of_one_cost_that_must_be_found(others):
    """A device with more samples may give one for nothing, and one with no more may not. Equal counts become as even as
    free ones at eight samples per device."""
    assert set(evened([4.0, 4.0], [2.0, 2.0], *[[3.0, 3.0]] * others)[0]) == {6.0}
    assert evened([3.0, 3.0, 2.0], [4.0], *[[6.0]] * others)[0][:2] == [6.0, 6.0]
    counts = evened([10.0, 2.0], [5.0, 3.0], [4.0, 3.0, 3.0], *[[5.0, 5.0]] * others)[1]
    assert sorted(counts) == [2] * (2 + others) + [3]
    weights = np.sort(cost(longalign(3, 512)))[::-1]
    rough, mean = differencing_equal(weights, 64), weights.sum() / 64
    assert sums(rough, weights).max() > 1.05 * mean
    for held in (rough, as_array(differencing(weights.tolist(), 64), 512)):
        assert sums(even_out(held, weights), weights).max() < 1.001 * mean


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_devices_stand_by_their_loads_and_numbers_whatever_order_they_come_from(loads, random):
    before = random.sample(range(len(loads)), len(loads))
    found = _lightest_first(np.array(loads, dtype=float), np.array(before))
    assert found.tolist() == sorted(range(len(loads)), key=lambda device: (loads[device], device))


# Of the heaviest devices.
def best(held, weights):
    """The later end of the heaviest device and of whom it trades with, of all trades there are slots for."""
    full = np.append(weights, 0.0)
    loads = full[held].sum(axis=1)
    heavy = int(loads.argmax())
    ends = [loads[heavy]]
    for other in {*range(len(held))} - {heavy}:
        moved = full[held[heavy]][:, None] - full[held[other]]
        ends.append(np.maximum(loads[heavy] - moved, loads[other] + moved).min())
    return min(ends)


@given(st.integers(0, 2**31), st.integers(2, 6))
@many
def test_where_trades_end_none_lowers_the_heaviest_device(seed, devices):
    """By trying all there are; or the bound is met."""
    rng = np.random.default_rng(seed)
    weights = np.sort(rng.exponential(size=int(rng.integers(devices, 5 * devices))))[::-1]
    scaled = weights / max(weights.sum() / devices, weights[0])
    after = relieve(longest_first(scaled, devices), scaled[None], rounds=999)
    top = loads(after, scaled[None]).max()
    assert top <= 1 + refine.CLOSE + 1e-6 or best(after, scaled) >= top - refine.GAIN - 1e-6
