"""Seconds that were planted come back out of fits and logs, and a fit says of what it never saw what least squares by
numpy say."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import nnls

from odcsim.decide import calibrate
from odcsim.decide.calibrate import Simulated
from odcsim.errors import InputError
from odcsim.fitting import robust
from odcsim.fitting.fit import examine
from odcsim.fitting.measurements import Compute, Measurements
from odcsim.fitting.slope import Slope, apart, slope
from odcsim.fitting.steps import LoggedStep

SEEDS = range(30)


def least_squares(columns, seconds):
    """Coefficients and their standard errors."""
    best, *_ = np.linalg.lstsq(columns, seconds, rcond=None)
    left = seconds - columns @ best
    variance = left @ left / (len(seconds) - columns.shape[1])
    return best, np.sqrt(variance * np.diag(np.linalg.inv(columns.T @ columns)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_line_is_that_of_least_squares(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.uniform(500, 1500, int(rng.integers(4, 60)))
    seconds = rng.uniform(0, 2) + 1e-3 * tokens * rng.lognormal(0, 0.1, len(tokens))
    found = slope(seconds, tokens)
    best, errors = least_squares(np.stack([np.ones(len(tokens)), tokens], axis=1), seconds)
    assert (found.rise, found.error) == pytest.approx((best[1], errors[1]))
    assert (found.seconds, found.tokens) == pytest.approx((seconds.mean(), tokens.mean()))
    at = np.array([100.0, 700.0, 3000.0])
    if found.off >= 1 or best[0] < 0:  # hardly known, or less than nothing without tokens: in proportion
        assert found.at(at) == pytest.approx(at * seconds.mean() / tokens.mean())
    else:
        assert found.at(at) == pytest.approx(best[0] + best[1] * at)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_does_not_depend_on_tokens_is_told_apart_where_it_is_clear(seed):
    """`beside` of a step, from nothing to several steps' time, beside steps that take `times` what was said."""
    rng = np.random.default_rng(seed)
    tokens, times, constant = rng.uniform(500, 1500, 60), rng.uniform(0.5, 3), rng.uniform(0, 0.3)
    beside = float(rng.choice([0.0, 0.02, 0.3, 2.0]))
    noise = float(rng.choice([0.0, 0.005, 0.05]))
    said = slope(constant + 1e-3 * tokens, tokens)
    step = times * (constant + 1e-3 * tokens) + beside
    measured = slope(step + noise * rng.standard_normal(60), tokens)
    off = 1.645 * measured.error / measured.rise
    ratio = measured.rise / said.rise
    by_tokens = ratio * (constant + 1e-3 * measured.tokens)
    rest = measured.seconds - by_tokens
    clear = off <= 0.1 and rest > 2 * off * by_tokens and rest > 1e-9
    found = apart(measured, said, 60)
    assert (found is not None) == clear or abs(rest) < 1e-9
    if found is not None and abs(rest) > 1e-9:
        assert found == pytest.approx((ratio, rest))
        assert found == pytest.approx((times, beside), rel=0.2, abs=5 * off * by_tokens)
    assert apart(measured, said, 19) is None
    assert apart(replace(measured, error=0.2 * measured.rise), said, 60) is None


# A run whose steps are known in closed form: compute by tokens, and transfers that no factor stretches.


class Run(Simulated):
    """Of steps of drawn tokens."""

    compute = property(lambda self: 1e-4 * self.tokens * self.setting.off)
    tokens = property(lambda self: self.setting.tokens)

    def with_compute(self, factor):
        return np.maximum(factor * self.compute, 0.01) + 0.05


def run_of(rng, spread, scatter=0.0):
    tokens = rng.uniform(1 - spread, 1 + spread, 200) * 10_000
    return Run(SimpleNamespace(tokens=tokens, off=rng.lognormal(0, scatter, 200)), ("lb-micro", "collective"))


def logged(run, rng, count, factor, beside=0.0, noise=0.0):
    which = rng.integers(0, 200, count)
    seconds = (run.with_compute(factor)[which] + beside) * rng.lognormal(0, noise, count)
    every = zip(seconds.tolist(), run.tokens[which].tolist(), strict=True)
    return tuple(LoggedStep(n, 1, s, t) for n, (s, t) in enumerate(every, 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_factor_is_the_one_by_which_a_step_takes_so_long(seed):
    rng = np.random.default_rng(seed)
    run = run_of(rng, 0.3, 0.1)
    seconds = rng.uniform(0.07, 20)
    found = run.factor(seconds)
    assert run.with_compute(found).mean() == pytest.approx(seconds, rel=2e-6)
    with pytest.raises(InputError):
        run.factor(0.06)  # transfers, and the least that compute takes
    rate = run.tokens.mean() / seconds
    by_rate = calibrate.by_rate(run, rate)
    assert run.with_compute(by_rate.factor).mean() == pytest.approx(seconds, rel=2e-6)
    assert by_rate.rate == pytest.approx(rate)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_factor_comes_back_from_a_log_and_odd_steps_are_left_out(seed):
    rng = np.random.default_rng(seed)
    run, factor = run_of(rng, 0.02), float(rng.uniform(0.5, 4))
    steps = list(logged(run, rng, 40, factor, noise=0.01))
    odd = sorted(rng.choice(40, int(rng.integers(0, 6)), replace=False).tolist())
    for n in odd:
        steps[n] = replace(steps[n], seconds=steps[n].seconds * float(rng.choice([0.3, 2, 9])))
    found = calibrate.by_steps(run, tuple(steps))
    assert [step.step - 1 for step in found.left_out] == odd
    assert (found.told, found.beside) == (False, 0.0)
    kept = [step for n, step in enumerate(steps) if n not in odd]
    told = sum(s.seconds for s in kept) / run.slope.at(np.array([s.tokens for s in kept])).sum()
    assert found.ratio == pytest.approx(told)
    assert found.factor == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_step_takes_beside_its_tokens_comes_back(seed):
    rng = np.random.default_rng(seed)
    run, factor, beside = run_of(rng, 0.6), float(rng.uniform(0.8, 3)), float(rng.uniform(2, 5))
    found = calibrate.by_steps(run, logged(run, rng, 60, factor, beside, noise=0.002))
    assert found.told
    # transfers are a constant, too: a part of them goes with the ratio
    assert found.beside == pytest.approx(beside + 0.05 - factor * 0.05, abs=0.1)
    assert found.ratio == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_interval_is_that_of_a_mean_whose_steps_scatter(seed):
    rng = np.random.default_rng(seed)
    run, noise = run_of(rng, 0.02, 0.03), float(rng.choice([0.0, 0.02, 0.08]))
    steps = logged(run, rng, 50, 1.0, noise=noise)
    found = calibrate.by_steps(run, steps)
    kept = found.kept
    scatter = np.log([s.seconds / (found.ratio * run.slope.at(np.array([s.tokens]))[0]) for s in kept])
    drawn, of_log = np.log(run.off).var(), scatter.var(ddof=1)
    lengths = max(of_log, drawn)  # a log that scatters less than lengths do has met few of them
    error = (lengths / len(kept) + drawn / 200 + max(0.0, of_log - drawn)) ** 0.5
    assert np.log(found.high) == pytest.approx(1.645 * max(error, 0.02))
    assert found.low * found.high == pytest.approx(1)


# Fits of coefficients.


@pytest.mark.parametrize("seed", SEEDS)
def test_coefficients_are_those_of_relative_least_squares_where_nothing_is_odd(seed):
    """And their errors, as far as Huber's weights leave all measurements alone."""
    rng = np.random.default_rng(seed)
    tokens = rng.uniform(100, 5000, 80)
    columns = np.stack([np.ones(80), tokens, tokens**2], axis=1)
    truth = np.array([rng.uniform(0.1, 1), rng.uniform(1e-4, 1e-3), rng.uniform(1e-8, 1e-7)])
    seconds = columns @ truth * (1 + rng.uniform(-0.01, 0.01, 80))
    found = robust.solve(columns, seconds)
    relative = columns / seconds[:, None]
    best, errors = nnls(relative, np.ones(80))[0], least_squares(relative, np.ones(80))[1]
    assert columns @ found.coefficients == pytest.approx(columns @ best, rel=2e-3)
    assert found.errors == pytest.approx(errors, rel=0.2)
    assert found.residuals == pytest.approx(columns @ found.coefficients / seconds - 1)
    assert found.spread == pytest.approx(0.0074, rel=0.4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_bad_measurements_hardly_move_it_whichever_way_they_are_off(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.uniform(100, 5000, 60)
    columns = np.stack([np.ones(60), tokens], axis=1)
    seconds = columns @ [0.5, 1e-3] * rng.lognormal(0, 0.01, 60)
    bad = rng.choice(60, 5, replace=False)
    for factor in (0.05, 20.0):
        odd = seconds.copy()
        odd[bad] *= factor
        clean, found = robust.solve(np.delete(columns, bad, 0), np.delete(seconds, bad)), robust.solve(columns, odd)
        assert columns @ found.coefficients == pytest.approx(columns @ clean.coefficients, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_repeats_by_every_pair(seed):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 4, (int(rng.integers(2, 20)), 2)).astype(float)
    seconds = rng.lognormal(0, 0.5, len(groups))
    alike = [(i, j) for i in range(len(groups)) for j in range(i) if (groups[i] == groups[j]).all()]
    gaps = [abs(np.log(seconds[i] / seconds[j])) for i, j in alike]
    assert robust.jitter(groups, seconds) == pytest.approx(1.4826 / 2**0.5 * np.median(gaps) if gaps else 0.0)
    over = [s / np.median(seconds[(groups == g).all(axis=1)]) for s, g in zip(seconds, groups, strict=True)]
    assert robust.stretch(groups, seconds) == pytest.approx(np.mean(np.minimum(over, 2)))


CELLS = [(tokens, parts) for tokens in (256, 512, 1024, 2048) for parts in (1, 2, 4, 8)]
KINDS = {"forward": (2e-4, 4e-6, 1e-9), "backward": (5e-4, 1.2e-5, 3.5e-9), "head": (3e-4, 2e-5, 0.0)}


@pytest.mark.parametrize("left_out", CELLS, ids=str)
def test_a_cell_that_was_left_out_is_told_as_least_squares_tell_it(left_out):
    rng = np.random.default_rng(CELLS.index(left_out))
    rows = [
        Compute(kind, t, t * t / n, (a + b * t + c * t * t / n) * float(rng.lognormal(0, 0.01)), t // n)
        for kind, (a, b, c) in KINDS.items()
        for t, n in CELLS
        if (t, n) != left_out
        for _ in range(3)
    ]
    words = {"hardware": "a test", "versions": "v", "date": "2026-01-02", "dtype": "float32", "transport": "shm"}
    profile = examine(Measurements("tiny", "cpu", tuple(rows), (), (), **words)).profile
    tokens, squares = left_out[0], left_out[0] ** 2 / left_out[1]
    for kind, (a, b, c) in KINDS.items():
        of, mine = getattr(profile, kind), [row for row in rows if row.kind == kind]
        terms = [[1, row.tokens, *([row.squares] if c else [])] for row in mine]
        seconds = np.array([row.seconds for row in mine])
        best, _ = least_squares(np.array(terms) / seconds[:, None], np.ones(len(mine)))
        told = of.constant + of.linear * tokens + of.quadratic * squares
        assert told == pytest.approx(best @ [1, tokens, *([squares] if c else [])], rel=0.012)
        assert told == pytest.approx(a + b * tokens + c * squares, rel=0.02)
        assert profile.low < told / (a + b * tokens + c * squares) < profile.high


def test_a_slope_of_steps_alike_is_none():
    assert slope(np.array([1.0, 2, 3]), np.full(3, 9.0)) == Slope(2.0, 9.0, 0.0, float("inf"))
