"""Costs learned from measured seconds: nobody's guess, and safe whatever is measured."""

import numpy as np
import pytest
from draws import chat, cost, longalign, swe
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance import LearnedCosts, plan
from odcsim.balance.library import weigh
from odcsim.errors import InputError
from odcsim.fitting.learning import KEPT

few = settings(max_examples=40)
LIMIT = 65_536
CONSTANT = 0.1  # seconds that every microbatch takes beside its samples
truths = st.tuples(st.floats(0, 1e-1), st.floats(1e-6, 1e-3), st.floats(0, 1e-8))
seeds = st.integers(0, 2**20)


def seconds_of(lengths, truth=None):
    if truth is None:
        return CONSTANT + cost(lengths).sum()
    constant, linear, quadratic = truth
    return constant + linear * lengths.sum() + quadratic * (lengths.astype(float) ** 2).sum()


def microbatches(seed, count=60):
    rng = np.random.default_rng(seed)
    return [rng.integers(100, 30_000, rng.integers(1, 6)) for _ in range(count)]


def noises(seed, noise, count):
    return np.exp(noise * np.random.default_rng(seed).standard_normal(count))


def told(parts, seconds, devices=1, owners=None):
    costs = LearnedCosts(devices)
    for i, (part, took) in enumerate(zip(parts, seconds, strict=True)):
        costs.update([part], took, owners[i] if owners is not None else i % devices)
    return costs


@given(truths, seeds)
@few
def test_without_noise_what_was_true_comes_back(truth, seed):
    parts = microbatches(seed)
    costs = told(parts, [seconds_of(part, truth) for part in parts], devices=3)
    lengths = np.array([100, 5000, 30_000])
    true = truth[1] * lengths + truth[2] * lengths**2
    assert costs.weights(lengths) == pytest.approx(true, rel=0.02, abs=0.02 * true.max())
    assert costs.speeds.tolist() == [1, 1, 1]
    whole = LearnedCosts(1)  # minibatches timed as a whole teach as well
    for start in range(0, 60, 3):
        three = parts[start : start + 3]
        whole.update(three, sum(seconds_of(part, truth) for part in three))
    assert whole.weights(lengths) == pytest.approx(true, rel=0.02, abs=0.02 * true.max())


@given(seeds, st.floats(1e-9, 1e6), st.integers(1, LIMIT), st.integers(1, 20))
@few
def test_where_all_microbatches_are_alike_the_ratio_stays_and_the_scale_is_learned(seed, took, length, count):
    part = np.full(1 + seed % 3, length)
    costs = told([part] * count, [took] * count, devices=1 + seed % 4)
    lengths = np.array([10, 1000, 60_000])
    expected = weigh(lengths) * took / weigh(part).sum()
    assert costs.weights(lengths) == pytest.approx(expected, rel=1e-3)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 100_000), max_size=4), st.floats(0, 1e9), st.integers(0, 2)), max_size=9)
)
def test_whatever_is_measured_weights_and_speeds_can_be_planned_with(measured):
    costs = LearnedCosts(3)
    for part, took, device in measured:
        costs.update([part], took, device)
    lengths = np.array([1, 70, 5000, 60_000])
    weights, speeds = costs.weights(lengths), costs.speeds
    assert all(np.isfinite(values).all() and (values > 0).all() for values in (weights, speeds))
    plan(lengths, devices=3, max_tokens=LIMIT, balancer="lb-mini", weights=weights, speeds=speeds)


@given(seeds, st.sampled_from([0.1, 0.5, 3.0, 100.0]))
@few
def test_a_few_bad_measurements_move_little(seed, factor):
    parts = microbatches(seed)
    seconds = np.array([seconds_of(part) for part in parts]) * noises(seed, 0.01, 60)
    lengths = np.array([1000, 8000, 30_000])
    calm = told(parts, seconds).weights(lengths)
    seconds[:3] *= factor
    assert told(parts, seconds).weights(lengths) == pytest.approx(calm, rel=0.1)


def test_what_was_measured_long_ago_is_forgotten():
    parts = microbatches(0, 40)
    costs = LearnedCosts(2)
    for factor, rounds in ((1.0, KEPT // 40), (2.0, KEPT // 40 + 1)):
        for _ in range(rounds):
            for part in parts:
                costs.update([part], factor * seconds_of(part))
    lengths = np.array([1000, 60_000])
    assert costs.weights(lengths) == pytest.approx(2 * cost(lengths), rel=0.01)


@given(seeds, st.sampled_from([0.0, 0.01, 0.05]))
@few
def test_noise_makes_no_device_fast_and_hardly_any_slow(seed, noise):
    parts = microbatches(seed, 160)
    seconds = [seconds_of(part) for part in parts] * noises(seed, noise, 160)
    one, again = (told(parts, seconds, devices=16) for _ in range(2))
    assert (one.coefficients, one.speeds.tolist()) == (again.coefficients, again.speeds.tolist())
    speeds = one.speeds
    assert speeds.max() == 1
    assert (speeds < 1).sum() <= (2 if noise else 0)
    assert speeds.min() >= 1 - 3 * noise
    parts, owners = microbatches(seed, 250), np.sort(np.arange(250) % 64)  # a few of many devices
    seconds = [seconds_of(part) for part in parts] * noises(seed, noise / 2, 250)
    speeds = told(parts, seconds, 64, owners).speeds
    assert speeds.max() == 1
    assert (speeds < 1).sum() <= 2


@given(seeds, st.sampled_from([0.0, 0.02]))
@few
def test_slow_and_fast_devices_are_found(seed, noise):
    true = np.array([1.0, 1.0, 0.7, 1.0, 1.0, 1.4, 1.0, 0.9])
    parts, owners = microbatches(seed, 160), np.arange(160) % 8
    seconds = [seconds_of(part) for part in parts] * noises(seed, noise, 160) / true[owners]
    assert told(parts, seconds, 8, owners).speeds == pytest.approx(true, rel=0.05)
    alike = told(parts, [seconds_of(part) for part in parts], 9, owners)
    assert alike.speeds[8] == 1  # of whom nothing was measured


def test_one_measurement_of_each_device_does_not_blame_the_device():
    """One sample each: what looks like speed may be length, so it is taken for that."""
    lengths = longalign(5, 64)
    costs = told([np.array([n]) for n in lengths], cost(lengths) * noises(5, 0.03, 64), devices=64)
    assert costs.speeds.tolist() == [1.0] * 64
    assert costs.weights(lengths) == pytest.approx(cost(lengths), rel=0.05)


def idle(devices, lengths, speeds):
    """Share of device time that waits for the last one, where devices meet once."""
    took = [sum(seconds_of(lengths[list(part)]) for part in device) for device in devices] / speeds
    return 1 - took.mean() / took.max()


def trained(draw, devices, samples, noise=0.0, speeds=None, minibatches=2):
    """Idle of plans from what was learned so far, token counts at first, and of plans from the truth."""
    true = np.ones(devices) if speeds is None else speeds
    costs, rng, found = LearnedCosts(devices), np.random.default_rng(0), []
    for number in range(minibatches):
        lengths = draw(number, devices * samples)
        weights = costs.weights(lengths) if number else lengths
        asked = {"devices": devices, "max_tokens": LIMIT, "balancer": "lb-mini"}
        mine = plan(lengths, **asked, weights=weights, speeds=None if speeds is None else costs.speeds).devices
        best = plan(lengths, **asked, weights=cost(lengths), speeds=speeds).devices
        found.append((idle(mine, lengths, true), idle(best, lengths, true)))
        for device, parts in enumerate(mine):
            for part in parts:
                took = seconds_of(lengths[list(part)]) / true[device]
                costs.update([lengths[list(part)]], took * np.exp(noise * rng.standard_normal()), device)
    return found


@pytest.mark.parametrize(("noise", "most", "slow"), [(0.0, 0.002, 0.002), (0.03, 0.01, 0.02)])
def test_after_one_minibatch_plans_are_as_good_as_from_the_truth(noise, most, slow):
    """And slow devices get less."""
    for draw, lost in ((longalign, 0.05), (swe, 0.02), (chat, 0.0)):
        (first, its_best), (second, best) = trained(draw, 64, 8, noise)
        assert first >= its_best + lost
        assert second <= best + most
    speeds = np.where(np.arange(64) < 4, 0.9, 1.0)
    (first, _), (second, best) = trained(longalign, 64, 8, noise, speeds)
    assert first > 0.08
    assert second <= best + slow


WRONG = [([[5]], 1.0, 2), ([[5, 0]], 1.0, 0), ([5, 6], 1.0, 0)]
WRONG += [([[5]], took, 0) for took in (float("nan"), -1.0, 2e9)]


def test_what_is_no_measurement_is_refused():
    for wrong in WRONG:
        with pytest.raises(InputError):
            LearnedCosts(2).update(*wrong)
    with pytest.raises(InputError):
        LearnedCosts(0)


def test_nothing_run_is_nothing_learned():
    """Weights are those of a plan without any."""
    costs = LearnedCosts(2)
    for parts, took in (([], 1.0), ([[]], 1.0), ([[5]], 0.0), ([[5]], 1e-300)):
        costs.update(parts, took)
        assert costs.weights([5, 50_000]) == pytest.approx(weigh(np.array([5, 50_000])))
        assert costs.speeds.tolist() == [1] * 2
