"""Seconds that were planted come back out of logs of steps."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import linregress

from odcsim.decide import calibrate
from odcsim.decide.calibrate import Simulated
from odcsim.errors import InputError
from odcsim.fitting.slope import Slope, apart, slope
from odcsim.fitting.steps import LoggedStep


@pytest.fixture(params=range(30))
def rng(request):
    return np.random.default_rng(request.param)


def test_a_line_is_that_of_least_squares(rng):
    """Of steps alike there is none."""
    assert slope(np.array([1.0, 2, 3]), np.full(3, 9.0)) == Slope(2.0, 9.0, 0.0, float("inf"))
    tokens = rng.uniform(500, 1500, int(rng.integers(4, 60)))
    seconds = rng.uniform(0, 2) + 1e-3 * tokens * rng.lognormal(0, 0.1, len(tokens))
    found, best = slope(seconds, tokens), linregress(tokens, seconds)
    assert (found.rise, found.error) == pytest.approx((best.slope, best.stderr))
    assert (found.seconds, found.tokens) == pytest.approx((seconds.mean(), tokens.mean()))
    at = np.array([100.0, 700.0, 3000.0])
    if found.off >= 1 or best.intercept < 0:  # hardly known, or less than nothing without tokens: in proportion
        assert found.at(at) == pytest.approx(at * seconds.mean() / tokens.mean())
    else:
        assert found.at(at) == pytest.approx(best.intercept + best.slope * at)


def test_what_does_not_depend_on_tokens_is_told_apart_where_it_is_clear(rng):
    """`beside` of a step, from nothing to several steps' time, beside steps that take `times` what was said."""
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


class Run(Simulated):
    """Of steps that are known in closed form: compute by drawn tokens, and transfers that no factor stretches."""

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


def test_the_factor_is_the_one_by_which_a_step_takes_so_long(rng):
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


def test_a_planted_factor_comes_back_from_a_log_and_odd_steps_are_left_out(rng):
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


def test_what_a_step_takes_beside_its_tokens_comes_back(rng):
    run, factor, beside = run_of(rng, 0.6), float(rng.uniform(0.8, 3)), float(rng.uniform(2, 5))
    found = calibrate.by_steps(run, logged(run, rng, 60, factor, beside, noise=0.002))
    assert found.told
    # transfers are a constant, too: a part of them goes with the ratio
    assert found.beside == pytest.approx(beside + 0.05 - factor * 0.05, abs=0.1)
    assert found.ratio == pytest.approx(factor, rel=0.05)


def test_the_interval_is_that_of_a_mean_whose_steps_scatter(rng):
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
