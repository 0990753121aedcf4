"""What a trace is said to be, how it is cut, and whether two are alike: by the samples that a table stands for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import InputError, Trace, load
from odcsim.reading.limits import cut, within
from odcsim.reading.stats import DOUBT, PERCENTILES, describe, histogram, likeness, quantiles

ROWS = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 6)), min_size=1, max_size=30)
COUNTED = ROWS.filter(lambda rows: any(count for _, count in rows))
LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=40)


def trace(lengths, **columns):
    return Trace("t", np.asarray(lengths, np.int64), **{name: np.array(of) for name, of in columns.items()})


def table(rows):
    lengths, counts = zip(*rows, strict=True)
    return trace(lengths, counts=counts), np.repeat(lengths, counts)


@given(COUNTED, st.integers(1, 5000))
def test_a_table_has_the_figures_of_its_expansion(rows, at):
    of, x = table(rows)
    stats, lost = describe(of), cut(of, at)
    assert (stats.count, stats.tokens, stats.shortest, stats.longest) == (len(x), x.sum(), x.min(), x.max())
    assert stats.mean == pytest.approx(x.mean())
    assert stats.cv == pytest.approx(x.std() / x.mean())
    assert stats.percentiles == pytest.approx(np.percentile(x, PERCENTILES))
    assert lost.samples == (x > at).sum()
    assert lost.tokens_if_cut == x.sum() - np.minimum(x, at).sum()
    assert lost.tokens_if_dropped == x[x > at].sum()
    edges, samples, tokens = histogram(of)
    assert samples.tolist() == np.histogram(x, edges)[0].tolist()
    assert tokens.tolist() == np.histogram(x, edges, weights=x)[0].tolist()
    assert (edges[0], edges[-1], samples.sum(), tokens.sum()) == (x.min(), x.max() + 1, len(x), x.sum())


@given(COUNTED, st.integers(1, 100))
def test_the_longest_hundredth_of_a_table_is_that_of_its_expansion(rows, times):
    of, x = table([(length, times * count) for length, count in rows])
    assert describe(of).tail == pytest.approx(np.sort(x)[::-1][: -(-len(x) // 100)].sum() / x.sum())


def test_counts_too_large_to_expand_loss_steps_and_groups():
    of = trace([100, 300], counts=[10**12] * 2)
    assert describe(of).mean == 200
    assert quantiles(of, [0.25, 0.75]).tolist() == [100, 300]
    stats = describe(trace([10] * 4, loss=[1, 2, 3, 4], step=[0, 0, 1, 1], group=[5, 5, 5, 6]))
    assert (stats.loss_share, stats.steps, stats.groups) == (0.25, 2, 3)
    bare = describe(trace([10]))
    assert (bare.loss_share, bare.steps, bare.groups, bare.cv) == (None, None, None, 0)


@given(COUNTED, st.integers(1, 100))
def test_limits_keep_what_they_say_and_tell_what_is_gone(rows, limit):
    of, x = table([(1 + length % 100, count) for length, count in rows])
    kept, cost = within(of, truncate=limit)
    assert kept.lengths.tolist() == np.minimum(of.lengths, limit).tolist()
    over, gone = (x > limit).sum(), (x - np.minimum(x, limit)).sum()
    numbers = [f"{over:,}", f"{limit:,}", f"{over / len(x):.2%}", f"{gone:,}", f"{gone / x.sum():.2%}"]
    assert [word.strip(",;.") for word in cost.split() if word[0].isdecimal()] == (numbers if over else [f"{limit:,}"])
    if x.min() <= limit:
        kept, cost = within(of, drop_over=limit)
        assert np.repeat(kept.lengths, kept.counts).tolist() == x[x <= limit].tolist()
        assert not over or f"{x[x > limit].sum():,} tokens" in cost


def test_rows_are_shortened_at_their_end_or_left_out_as_a_whole():
    rl = trace([10, 50, 20, 90], loss=[5, 40, 20, 0], group=[0, 0, 1, 1], step=[3, 3, 4, 4])
    cut, left = within(rl, truncate=20)[0], within(rl, drop_over=20)[0]
    found = [[one.tolist() for one in (kept.lengths, kept.loss, kept.group, kept.step)] for kept in (cut, left)]
    assert found[0] == [[10, 20, 20, 20], [5, 10, 20, 0], [0, 0, 1, 1], [3, 3, 4, 4]]
    assert found[1] == [[10, 20], [5, 20], [0, 1], [3, 4]]


def test_a_limit_is_one_length_and_leaves_something():
    plain, spec = load("uniform:min=1,max=100"), "uniform:min=1,max=100"
    limited = load(spec, truncate=50)
    assert np.array_equal(limited.lengths, np.minimum(plain.lengths, 50))
    assert limited.origin.startswith(f"{plain.origin}; ")
    with pytest.raises(InputError):
        load(spec, drop_over=0)
    with pytest.raises(InputError):
        within(trace([4, 6], counts=[0, 1]), drop_over=5)


@given(LENGTHS, LENGTHS)
def test_the_distance_is_that_of_kolmogorov_and_smirnov(this, that):
    found = likeness(trace(this), trace(that))
    shares = [[np.mean(np.array(lengths) <= at) for at in (*this, *that)] for lengths in (this, that)]
    assert found.distance == pytest.approx(max(abs(a - b) for a, b in zip(*shares, strict=True)), abs=1e-12)
    values, counts = np.unique(this, return_counts=True)  # a table is like its expansion, and any order of it
    assert likeness(trace(that), trace(values, counts=counts)).distance == found.distance
    same = likeness(trace(values, counts=counts), trace(this[::-1]))
    assert (same.distance, [*same.apart], {figure.ratio for figure in same.figures.values()}) == (0, [], {1.0})


def drawn(seed, samples, median=400.0, sigma=1.0):
    lengths = median * np.random.default_rng(seed).lognormal(0, sigma, samples)
    return trace(np.maximum(1, np.rint(lengths)))


@pytest.mark.parametrize("sizes", [(20, 20), (50, 400), (400, 100), (1000, 1000)])
def test_draws_from_the_same_are_seldom_called_apart(sizes):
    for sigma in (0.3, 1.5):
        pairs = ([drawn(2 * seed + n, size, sigma=sigma) for n, size in enumerate(sizes)] for seed in range(150))
        assert np.mean([bool(likeness(*pair).apart) for pair in pairs]) <= 1.5 * DOUBT


def test_what_is_longer_or_has_another_tail_is_apart():
    usual, longer = drawn(1, 3000), drawn(2, 3000, median=480.0)
    assert {"mean", "p50", "distance"} <= set(likeness(usual, longer).apart)
    tail = trace(np.where(usual.lengths > np.quantile(usual.lengths, 0.98), 2 * usual.lengths, usual.lengths))
    assert "p99" in (apart := likeness(tail, usual).apart)
    assert "distance" not in apart
    assert set(likeness(drawn(1, 200), drawn(2, 5000)).figures) == {"mean", "p50", "p90"}  # few have no tail


def test_samples_of_one_prompt_count_once():
    usual, moved = drawn(1, 2000), drawn(2, 2000, median=520.0)
    groups = np.repeat(np.arange(20), 100)
    assert likeness(usual, moved).apart
    assert not likeness(replace(usual, group=groups), replace(moved, group=groups)).apart
