"""Figures of a trace: weighted by counts they are those of every single sample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.reading.stats import PERCENTILES, cut, describe, histogram, quantiles
from odcsim.trace import Trace

rows = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 6)), min_size=1, max_size=30)


def table(rows):
    lengths, counts = np.array(rows, np.int64).T
    return Trace("t", lengths, counts=counts)


@given(rows.filter(lambda rows: any(count for _, count in rows)), st.integers(1, 5000))
@settings(deadline=None)
def test_a_table_has_the_figures_of_its_expansion(rows, at):
    trace, x = table(rows), np.repeat(*np.array(rows, np.int64).T)
    stats, lost = describe(trace), cut(trace, at)
    assert (stats.count, stats.tokens, stats.shortest, stats.longest) == (len(x), x.sum(), x.min(), x.max())
    assert stats.mean == pytest.approx(x.mean())
    assert stats.cv == pytest.approx(x.std() / x.mean())
    assert stats.percentiles == pytest.approx(np.percentile(x, PERCENTILES))
    assert lost.samples == (x > at).sum()
    assert lost.tokens_if_cut == x.sum() - np.minimum(x, at).sum()
    assert lost.tokens_if_dropped == x[x > at].sum()
    edges, counts = histogram(trace)
    assert counts.sum() == len(x)
    assert counts.tolist() == np.histogram(x, edges)[0].tolist()
    assert edges[0] == x.min()
    assert edges[-1] == x.max() + 1


def test_figures_of_counts_too_large_to_expand():
    trace = table([(100, 10**12), (300, 10**12)])
    assert describe(trace).mean == 200
    assert quantiles(trace, [0.25, 0.75]).tolist() == [100, 300]


def test_loss_steps_and_groups():
    columns = {"loss": [1, 2, 3, 4], "step": [0, 0, 1, 1], "group": [5, 5, 5, 6]}
    stats = describe(Trace("t", np.array([10] * 4), **{k: np.array(v) for k, v in columns.items()}))
    assert (stats.loss_share, stats.steps, stats.groups) == (0.25, 2, 3)
    bare = describe(Trace("t", np.array([10])))
    assert (bare.loss_share, bare.steps, bare.groups, bare.cv) == (None, None, None, 0)
