"""Devices of unlike speeds."""

import numpy as np
import pytest
from draws import cost, longalign, swe
from hypothesis import given
from hypothesis import strategies as st

from odcsim.balance import plan
from odcsim.heuristics.uneven import earliest, even_out

LIMIT = 65_536


@st.composite
def cases(draw):
    devices = draw(st.integers(1, 9))
    lengths = draw(st.lists(st.integers(1, LIMIT), min_size=1, max_size=40))
    speeds = draw(st.lists(st.floats(0.01, 100), min_size=devices, max_size=devices))
    return np.array(lengths), np.array(speeds)


@st.composite
def crowds(draw):
    """So many devices that trades are made in arrays."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    devices = int(rng.integers(48, 140))
    lengths = np.exp(rng.uniform(0, np.log(LIMIT), rng.integers(1, 5 * devices))).astype(np.int64)
    kinds = np.exp(rng.uniform(-2, 2, rng.choice([1, 3, 1000])))
    return lengths, rng.choice(kinds, devices)


either = st.one_of(cases(), crowds())


def planned(lengths, speeds, weights=None, devices=None):
    how = {"devices": devices or len(speeds), "max_tokens": LIMIT, "balancer": "lb-mini"}
    return plan(lengths, **how, weights=cost(lengths) if weights is None else weights, speeds=speeds).devices


def times(devices, lengths, speeds):
    weights = cost(lengths)
    return np.array([sum(weights[i] for part in device for i in part) for device in devices]) / speeds


@given(either, st.sampled_from([0.25, 2.0, 1024.0]))
def test_every_sample_runs_once_under_the_limit_whatever_the_units(case, factor):
    """Where samples weigh nothing, too."""
    lengths, speeds = case
    expected = planned(lengths, speeds)
    assert planned(lengths, factor * speeds) == planned(lengths, speeds, factor * cost(lengths)) == expected
    for devices in (expected, planned(lengths, speeds, np.zeros(len(lengths)))):
        assert len(devices) == len(speeds)
        assert sorted(i for device in devices for part in device for i in part) == list(range(len(lengths)))
        assert all(part and lengths[list(part)].sum() <= LIMIT for device in devices for part in device)


@given(cases())
def test_each_sample_goes_where_it_is_done_first(case):
    lengths, speeds = case
    weights = np.sort(cost(lengths))[::-1]
    owner = {i: device for device, group in enumerate(earliest(weights, speeds)) for i in group}
    loads = np.zeros(len(speeds))
    for i, weight in enumerate(weights):
        ends = (loads + weight) / speeds
        assert ends[owner[i]] <= ends.min() * (1 + 1e-9)
        loads[owner[i]] += weight


@given(either)
def test_trades_never_end_a_minibatch_later(case):
    lengths, speeds = case
    weights = np.sort(cost(lengths))[::-1]
    before = max(weights[group].sum() / speed for group, speed in zip(earliest(weights, speeds), speeds, strict=True))
    assert times(planned(lengths, speeds), lengths, speeds).max() <= before * (1 + 1e-12)


@pytest.mark.parametrize(("draw", "devices", "most"), [(longalign, 8, 0.01), (swe, 64, 0.005)])
def test_the_last_device_is_done_close_to_the_bound(draw, devices, most):
    """Nothing is done before the work is divided by speed, nor before the fastest device has run the longest."""
    gaps = []
    for seed in range(5):
        lengths = draw(seed, devices * 8)
        weights, speeds = cost(lengths), np.random.default_rng(seed).choice([1.0, 0.9, 0.5], devices)
        bound = max(weights.sum() / speeds.sum(), weights.max() / speeds.max())
        gaps.append(times(planned(lengths, speeds), lengths, speeds).max() / bound - 1)
    assert np.mean(gaps) < most


@pytest.mark.parametrize("draw", [longalign, swe])
def test_many_devices_are_balanced_as_well_as_by_trades_one_by_one(draw):
    """The latter are how few devices are balanced. Alike devices are as well balanced as without speeds."""
    lengths = draw(1, 96 * 8)
    speeds, alike = np.random.default_rng(1).choice([1.0, 0.9, 0.5], 96), np.ones(96)
    weights = np.sort(cost(lengths))[::-1]
    one_by_one = even_out(earliest(weights, speeds), weights, speeds)
    most = max(weights[group].sum() / speed for group, speed in zip(one_by_one, speeds, strict=True))
    assert times(planned(lengths, speeds), lengths, speeds).max() <= most * (1 + 5e-4)
    most = times(planned(lengths, None, devices=96), lengths, alike).max()
    assert times(planned(lengths, alike), lengths, alike).max() <= most * 1.002
    assert [len(device) for device in planned(np.full(9, LIMIT), np.array([1.0, 0.5]))] == [6, 3]
