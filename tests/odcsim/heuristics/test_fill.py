"""Tight fits up to a target."""

import numpy as np
import pytest
from draws import cost, longalign, swe
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.balance.lb_tight import tightest
from odcsim.heuristics.bound import lower_bound
from odcsim.heuristics.fill import fill

many = settings(max_examples=200, deadline=None)
weights = st.lists(st.one_of(st.integers(1, 9).map(float), st.floats(0.01, 100)), min_size=1, max_size=40)


@given(weights.map(lambda found: sorted(found, reverse=True)), st.integers(1, 9), st.floats(0.3, 3))
@many
def test_any_target_gives_every_sample_to_one_device_and_leaves_none_idle(weights, devices, slack):
    groups = fill(weights, devices, slack * sum(weights) / devices)
    assert len(groups) == devices
    assert sorted(i for group in groups for i in group) == list(range(len(weights)))
    assert sum(not group for group in groups) == max(0, devices - len(weights))


def test_a_case_worked_by_hand():
    # 7 and the 3 beside it; then 6 with the 4; the rest is left for the last.
    assert fill([7.0, 6.0, 4.0, 3.0, 3.0, 3.0, 3.0], 3, 10.0) == [[0, 3], [1, 2], [4, 5, 6]]


def test_a_second_sample_that_is_not_the_largest_that_fits_may_fill_better():
    # 6 takes 3 and 3 rather than the 5 that fits too.
    assert fill([6.0, 5.0, 4.0, 4.0, 3.0, 3.0], 2, 12.5)[0] == [0, 4, 5]


@pytest.mark.parametrize(
    ("draw", "devices", "samples", "most"),
    [(swe, 8, 4, 0.005), (swe, 64, 3, 0.003), (swe, 64, 4, 0.001), (swe, 256, 3, 0.003), (longalign, 64, 6, 0.001)],
)
def test_tight_plans_come_to_the_lower_bound(draw, devices, samples, most):
    gaps = []
    for seed in range(6 if devices < 256 else 2):
        weights = np.sort(cost(draw(seed, devices * samples)))[::-1]
        held = tightest(weights, devices)
        gaps.append(np.append(weights, 0)[held].sum(axis=1).max() / lower_bound(weights, devices) - 1)
    assert np.mean(gaps) <= most
