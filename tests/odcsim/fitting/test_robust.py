"""Robust fits find what made the seconds, whatever a few bad ones say; drift is what spells of measuring differ by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from odcsim.errors import InputError
from odcsim.fitting.robust import jitter, solve, solve_near, stretch
from odcsim.fitting.spells import Drift, drift

# Tokens and squares vary independently: each number of tokens as one sample and cut into several.
LOADS = np.array([(1.0, t, t * t / parts) for t in (256, 512, 1024, 2048, 4096) for parts in (1, 2, 4, 8)])
truths = st.tuples(st.floats(0, 1e-2), st.floats(1e-7, 1e-4), st.floats(0, 1e-7)).map(np.array)
seeds = st.integers(0, 2**20)


def noisy(truth, noise: float, seed: int, repeats: int = 1):
    columns = np.repeat(LOADS, repeats, axis=0)
    rng = np.random.default_rng(seed)
    return columns, columns @ truth * np.exp(noise * rng.standard_normal(len(columns)))


@given(seeds)
def test_coefficients_are_those_of_relative_least_squares_where_nothing_is_odd(seed):
    """And their errors, as far as Huber's weights leave all measurements alone."""
    rng = np.random.default_rng(seed)
    tokens = rng.uniform(100, 5000, 80)
    columns = np.stack([np.ones(80), tokens, tokens**2], axis=1)
    truth = np.array([rng.uniform(0.1, 1), rng.uniform(1e-4, 1e-3), rng.uniform(1e-8, 1e-7)])
    seconds = columns @ truth * (1 + rng.uniform(-0.01, 0.01, 80))
    found = solve(columns, seconds)
    relative = columns / seconds[:, None]
    best, off = nnls(relative, np.ones(80))
    assert columns @ found.coefficients == pytest.approx(columns @ best, rel=2e-3)
    errors = off * np.sqrt(np.diag(np.linalg.inv(relative.T @ relative)) / 77)
    assert found.errors == pytest.approx(errors, rel=0.2)
    assert found.residuals == pytest.approx(columns @ found.coefficients / seconds - 1)
    assert found.spread == pytest.approx(0.0074, rel=0.4)


@given(truths, seeds, st.sampled_from([0.05, 0.2, 0.6, 1.5, 20.0]))
def test_noise_and_three_bad_measurements_of_sixty_hardly_move_it(truth, seed, factor):
    columns, seconds = noisy(truth, 0.02, seed, repeats=3)
    calm = solve(columns, seconds)
    assert np.abs(columns @ calm.coefficients / (columns @ truth) - 1).max() < 0.03
    assert 0.01 < calm.spread < 0.04
    columns, seconds = noisy(truth, 0.01, seed, repeats=3)
    calm = solve(columns, seconds)
    bad = np.random.default_rng(seed).choice(len(seconds), 3, replace=False)
    seconds[bad] *= factor
    found = solve(columns, seconds)
    assert np.abs(columns @ (found.coefficients - calm.coefficients) / (columns @ calm.coefficients)).max() < 0.02
    assert set(np.argsort(-np.abs(found.residuals))[:3]) == set(bad)
    for one in (calm, found, solve(*noisy(truth, 0.3, seed))):
        assert (one.coefficients >= 0).all()
        assert (one.errors >= 0).all()
        assert np.isfinite(one.errors).all()


def test_standard_errors_hold_the_truth_about_as_often_as_they_should():
    truth = np.array([2e-3, 1e-5, 4e-9])
    found = [solve(*noisy(truth, 0.02, seed, repeats=2)) for seed in range(200)]
    inside = np.mean([np.abs(one.coefficients - truth) < 2 * one.errors for one in found], axis=0)
    assert ((inside > 0.88) & (inside <= 0.995)).all()


def test_columns_that_do_not_vary_independently_are_refused():
    for columns in (
        [(1.0, t, t * 512.0) for t in (512, 1024, 2048, 4096)],  # samples of one length: squares follow tokens
        [(1.0, 1024.0, s) for s in (1e5, 2e5, 5e5, 1e6)],  # microbatches of one size: tokens are a constant
        [(1.0, t, t * t) for t in (512, 1024, 2048)],  # no more measurements than coefficients
        [(1.0, t, 0.0) for t in (512, 1024, 2048, 4096)],  # no squares
        [(1.0, 1000.0 + t, (1000.0 + t) ** 2) for t in range(9)],  # all but the same
    ):
        with pytest.raises(InputError):
            solve(np.array(columns), np.array(columns) @ np.array([1e-3, 1e-5, 1e-9]))


@given(seeds)
def test_repeats_by_every_pair(seed):
    """Jitter is the spread between repeats alone; none counts more than twice in what interruptions add."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 4, (int(rng.integers(2, 20)), 2)).astype(float)
    seconds = rng.lognormal(0, 0.5, len(groups))
    alike = [(i, j) for i in range(len(groups)) for j in range(i) if (groups[i] == groups[j]).all()]
    gaps = [abs(np.log(seconds[i] / seconds[j])) for i, j in alike]
    assert jitter(groups, seconds) == pytest.approx(1.4826 / 2**0.5 * np.median(gaps) if gaps else 0.0)
    over = [s / np.median(seconds[(groups == g).all(axis=1)]) for s, g in zip(seconds, groups, strict=True)]
    assert stretch(groups, seconds) == pytest.approx(np.mean(np.minimum(over, 2)))


@given(truths, seeds)
def test_near_something_else_the_measurements_still_decide(truth, seed):
    columns, seconds = noisy(truth, 0.01, seed, repeats=3)
    near = np.array([0.0, truth[1] * 3, 1e-8])
    found = solve_near(columns, seconds, near, within=np.array([1e-2, truth[1] * 3, 1e-7]))
    assert np.abs(columns @ found / (columns @ truth) - 1).max() < 0.02


@given(st.floats(1e-6, 1e3), st.integers(1, 5))
def test_near_something_one_load_moves_nothing_but_what_it_must(seconds, repeats):
    columns = np.array([[1.0, 1000.0, 1e6]] * repeats)
    near = np.array([0.0, 1.0, 1e-3]) * seconds / 2000
    within = 2 * near + np.array([seconds / 10, 0, 0])
    found = solve_near(columns, np.full(repeats, seconds), near, within=within)
    np.testing.assert_allclose(found, near, rtol=1e-6, atol=1e-9 * seconds)
    further = solve_near(columns, np.full(repeats, 1.5 * seconds), near, within=within)
    assert columns[0] @ further == pytest.approx(1.5 * seconds, rel=1e-3)
    assert (further >= near * 0.999).all()


@pytest.mark.parametrize("spells", [3, 5, 6])
def test_another_spell_is_as_near_as_drift_says_nine_times_in_ten(spells):
    rng, inside = np.random.default_rng(spells), 0
    for _ in range(400):
        speeds = 0.1 * rng.standard_normal(spells + 1)
        seconds = np.exp(np.repeat(speeds[:-1], 20))
        found = drift(np.repeat(np.arange(1, spells + 1), 20), seconds, np.ones(20 * spells))
        inside += abs(speeds[-1] - speeds[:-1].mean()) <= found.reach
    assert 0.85 <= inside / 400 <= 0.95


def test_calls_of_few_spells_or_of_none_known_say_nothing():
    seconds = np.array([1.0, 1.1, 1.2, 50.0])
    assert drift([1, 2, 3, 0], seconds, np.ones(4)) == drift([1, 2, 3], seconds[:3], np.ones(3)) != Drift()
    assert drift([1, 1, 2, 3], seconds, seconds).reach == 0
    for spells in ([0, 0, 0], [1, 1, 1], [1, 2, 2]):
        assert drift(spells, np.array([1.0, 2.0, 4.0]), np.ones(3)) == Drift()
