"""How fast ranks are for equal work: who is slow is found, whoever it is, and nobody is called so by chance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.decide.diagnosis.computed import table_of
from odcsim.decide.diagnosis.paces import KERNELS, LENGTHS, PERSISTS, Paces, paces_of
from odcsim.observed.run import RanMicrobatch, RanStep


def ran(pace, *, seed=0, steps=12, count=4, noise=0.02, lengths=True, even=False):
    """Microbatches of drawn samples on ranks that take so many times as long as usual."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(steps):
        rows = []
        for rank, times in enumerate(pace):
            for m in range(count):
                held = (4000, 2000) if even else tuple(int(n) for n in rng.lognormal(7.5, 0.9, rng.integers(1, 5)) + 16)
                usual = 0.01 + 2e-6 * sum(held) + 3e-10 * sum(n * n for n in held)
                seconds = usual * times * rng.lognormal(0, noise)
                rows.append(RanMicrobatch(rank, m, seconds, lengths=held if lengths else ()))
        found.append(RanStep(number, 1.0, tuple(rows)))
    return found


def told(steps, ranks, alike=None) -> Paces:
    return paces_of(table_of(steps), tuple(range(ranks)), alike or {})


@settings(max_examples=40)
@given(st.integers(2, 8), st.integers(0, 7), st.sampled_from([0.6, 1.08, 1.3, 2.0]), st.integers(0, 2**16))
def test_one_rank_that_is_not_as_fast_is_told_by_what_it_held(ranks, place, times, seed):
    pace = [1.0] * ranks
    pace[place % ranks] = times
    found = told(ran(pace, seed=seed), ranks)
    assert found.told == LENGTHS
    usual = min(pace) if ranks == 2 else 1.0  # of two the quicker one is as usual
    for rank in range(ranks):
        assert found.times[rank] == pytest.approx(pace[rank] / usual, rel=0.03)
        assert pace[rank] != usual or found.times[rank] == 1.0


@pytest.mark.parametrize(("noise", "lengths"), [(0.05, True), (0.02, False)])
def test_nobody_is_called_slow_by_chance(noise, lengths):
    """Nor by samples whose lengths are unknown: of fifty runs of four ranks two at most."""
    runs = [told(ran([1.0] * 4, seed=seed, noise=noise, lengths=lengths), 4) for seed in range(50)]
    assert sum(found.uneven for found in runs) <= 2


def test_equal_kernels_tell_before_anything_else_and_one_that_is_near_is_alike():
    kernels = {f"kernel {k}": {0: k, 1: 1.25 * k, 2: 1.01 * k} for k in (1e-3, 2e-3, 5e-3)}
    found = told(ran([1.0, 1.0, 1.0]), 3, kernels)
    assert found.told == KERNELS
    assert found.times == pytest.approx({0: 1.0, 1: 1.25 / 1.01, 2: 1.0})


def test_where_nobody_knows_what_they_held_what_persists_is_told_and_few_steps_tell_nothing():
    steps = ran([1.0, 1.0, 1.5], lengths=False, even=True)
    found = told(steps, 3)
    assert found.told == PERSISTS
    assert found.times == pytest.approx({0: 1.0, 1: 1.0, 2: 1.5}, rel=0.03)
    assert told(steps[:3], 3).told == ""
    assert not told(steps[:3], 3).uneven


def test_one_step_of_few_microbatches_names_only_who_is_far_off():
    near = told(ran([1.0, 1.02], steps=1, count=2, noise=0.05), 2)
    far = told(ran([1.0, 1.5], steps=1, count=16, noise=0.02), 2)
    assert not near.uneven
    assert far.times[1] == pytest.approx(1.5, rel=0.05)


def test_kernels_that_disagree_or_not_all_ranks_ran_and_ranks_that_nobody_saw_name_nobody():
    rng = np.random.default_rng(0)
    kernels = {f"kernel {k}": {0: 1.0, 1: float(rng.lognormal(0.05, 0.2))} for k in range(6)}
    assert not told([], 2, kernels).uneven
    assert told(ran([1.0, 1.3]), 2, {"a kernel": {0: 1.0}}).told == LENGTHS
    found = told(ran([1.0, 1.3, 1.0]), 5)
    assert found.times[3] == found.times[4] == 1.0
    assert found.times[1] == pytest.approx(1.3, rel=0.03)
