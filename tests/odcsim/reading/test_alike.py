"""Whether two traces are alike: what chance makes is not called apart, and what is apart is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.reading.alike import DOUBT, likeness
from odcsim.trace import Trace


def trace(lengths):
    return Trace("t", np.asarray(lengths, np.int64))


def drawn(seed, samples, median=400.0, sigma=1.0):
    lengths = median * np.random.default_rng(seed).lognormal(0, sigma, samples)
    return trace(np.maximum(1, np.rint(lengths)))


lists = st.lists(st.integers(1, 5000), min_size=1, max_size=40)


@given(lists, lists)
@settings(deadline=None)
def test_the_distance_is_that_of_kolmogorov_and_smirnov(this, that):
    found = likeness(trace(this), trace(that))
    shares = [[np.mean(np.array(lengths) <= at) for at in (*this, *that)] for lengths in (this, that)]
    assert found.distance == pytest.approx(max(abs(a - b) for a, b in zip(*shares, strict=True)), abs=1e-12)
    assert found.distance == likeness(trace(that), trace(this)).distance


@given(lists)
@settings(deadline=None)
def test_a_table_is_like_its_expansion_and_any_order_of_it(lengths):
    values, counts = np.unique(lengths, return_counts=True)
    found = likeness(Trace("t", values, counts=counts), trace(lengths[::-1]))
    assert found.distance == 0
    assert not found.apart
    assert {figure.ratio for figure in found.figures.values()} == {1.0}


@pytest.mark.parametrize("sigma", [0.3, 1.5])
@pytest.mark.parametrize("sizes", [(20, 20), (50, 400), (400, 100), (1000, 1000)])
def test_draws_from_the_same_are_seldom_called_apart(sizes, sigma):
    called = [
        bool(likeness(*(drawn(2 * seed + n, size, sigma=sigma) for n, size in enumerate(sizes))).apart)
        for seed in range(150)
    ]
    assert np.mean(called) <= 1.5 * DOUBT


def test_what_is_longer_or_has_another_tail_is_apart():
    usual, longer = drawn(1, 3000), drawn(2, 3000, median=480.0)
    assert {"mean", "p50", "distance"} <= set(likeness(usual, longer).apart)
    tail = trace(np.where(usual.lengths > np.quantile(usual.lengths, 0.98), 2 * usual.lengths, usual.lengths))
    found = likeness(tail, usual)
    assert "p99" in found.apart
    assert "distance" not in found.apart


def test_of_few_samples_no_tail_is_told():
    assert set(likeness(drawn(1, 200), drawn(2, 5000)).figures) == {"mean", "p50", "p90"}


def test_samples_of_one_prompt_count_once():
    usual, moved = drawn(1, 2000), drawn(2, 2000, median=520.0)
    groups = np.repeat(np.arange(20), 100)
    assert likeness(usual, moved).apart
    assert not likeness(replace(usual, group=groups), replace(moved, group=groups)).apart
