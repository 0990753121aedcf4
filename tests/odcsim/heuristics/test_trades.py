"""Trades between devices under several scenarios."""

import numpy as np
import pytest
from draws import cost, longalign
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.heuristics import trades
from odcsim.heuristics.longest_first import longest_first
from odcsim.heuristics.trades import hold, relieve

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
    relieve(hold(longest_first(weights, 64), 64), scaled)
    assert seen
    assert max(seen) <= 1000
