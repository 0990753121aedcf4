"""Microbatches of like length, as many on all devices: every sample once, within the limit, dear beside dear."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odc_engine.trainers.slices import padded_slices
from odcsim.balance.library import weigh

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def sliced(lengths, devices, limit, weights=None):
    own = np.array(lengths, dtype=np.int64)
    costs = weigh(own) if weights is None else np.array(weights, dtype=np.float64)
    return padded_slices(range(len(own)), own, costs, devices, limit)


@given(lengths, st.integers(1, 5), st.integers(60, 400))
@example([1, 1, 1, 1], 3, 60)
def test_every_sample_runs_once_within_the_limit_in_equal_counts(lengths, devices, limit):
    found = sliced(lengths, devices, limit)
    parts = list(chain.from_iterable(found))
    assert sorted(chain.from_iterable(parts)) == list(range(len(lengths)))
    assert all(part and len(part) * max(lengths[i] for i in part) <= limit for part in parts)
    counts = {len(own) for own in found}
    assert len(counts) == 1 or (max(counts) - min(counts) == 1 and all(len(part) == 1 for part in parts))


@given(lengths, st.integers(1, 5), st.integers(60, 400))
def test_no_cut_within_the_limit_has_fewer(lengths, devices, limit):
    longest, fewest = sorted(lengths, reverse=True), 0
    while longest:
        del longest[: limit // longest[0]]
        fewest += 1
    assert max(map(len, sliced(lengths, devices, limit))) == -(-fewest // devices)


@given(lengths, st.integers(2, 5), st.integers(60, 400), st.randoms())
def test_steps_run_from_the_costliest_down_in_whatever_order_samples_come(lengths, devices, limit, shuffler):
    def steps(found):
        return [max(len(own[at]) * max(own[at]) for own in found if at < len(own)) for at in range(len(found[0]))]

    def in_lengths(lengths):
        return [[[lengths[i] for i in part] for part in own] for own in sliced(lengths, devices, limit, [*lengths])]

    costs = steps(in_lengths(lengths))
    assert costs == sorted(costs, reverse=True)
    shuffler.shuffle(lengths)
    assert steps(in_lengths(lengths)) == costs


def test_a_long_sample_meets_several_short_ones_that_cost_as_much():
    assert sliced([100, 50, 50, 25, 25, 25, 25], 3, 120, [100, 50, 50, 25, 25, 25, 25]) == [
        [(0,)],
        [(1, 2)],
        [(3, 4, 5, 6)],
    ]


def test_what_costs_nothing_is_run_all_the_same():
    assert sorted(chain.from_iterable(chain.from_iterable(sliced([3, 3, 3], 2, 9, [0, 0, 0])))) == [0, 1, 2]


@pytest.mark.parametrize("devices", [2, 4])
def test_unlike_lengths_wait_less_than_in_the_order_they_come(devices):
    """Seconds of steps in which all wait for the costliest, where a sample alone is a step stock."""
    drawn = np.clip(np.random.default_rng(5).lognormal(4.6, 1.0, 16 * devices), 16, 1024).astype(int).tolist()
    found = sliced(drawn, devices, 1024, drawn)
    ours = sum(max(len(part) * drawn[part[0]] for part in step) for step in zip(*found, strict=True))
    stock = sum(max(drawn[at : at + devices]) for at in range(0, len(drawn), devices))
    assert ours < 0.9 * stock
