"""Laws of traces and of the minibatches drawn from them."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.trace import Trace


def trace(lengths, **columns):
    return Trace("t", np.array(lengths, np.int64), **{k: np.array(v, np.int64) for k, v in columns.items()})


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 12), st.integers(0, 99))
def test_a_pass_takes_no_sample_twice_and_every_minibatch_is_full(size, samples, count, seed):
    t = trace(range(1, size + 1))
    if samples > size:
        with pytest.raises(InputError):
            t.minibatches(samples, count, seed=seed)
        return
    found = t.minibatches(samples, count, seed=seed)
    assert [len(ids) for ids in found] == [samples] * count
    per_pass = size // samples
    for start in range(0, count, per_pass):
        ids = np.concatenate(found[start : start + per_pass])
        assert len(np.unique(ids)) == len(ids)
        assert set(ids) <= set(range(size))


def test_the_seed_decides_and_each_pass_is_shuffled_anew():
    t = trace(range(1, 101))
    same, again, other = (np.array(t.minibatches(50, 4, seed=s)) for s in (3, 3, 4))
    assert (same == again).all()
    assert (same != other).any()
    assert (same[:2] != same[2:]).any()


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 5)), min_size=1, max_size=20))
def test_a_count_table_is_its_expansion(rows):
    lengths, counts = zip(*rows, strict=True)
    if not any(counts):
        with pytest.raises(InputError):
            trace(lengths, counts=counts)
        return
    table, expanded = trace(lengths, counts=counts), trace(np.repeat(lengths, counts))
    assert (table.size, table.longest) == (expanded.size, expanded.longest)
    ids = np.arange(table.size)
    assert (table.take(ids) == expanded.take(ids)).all()


def test_a_count_table_draws_in_memory_that_does_not_follow_its_counts():
    t = trace([10, 20], counts=[10**12, 3 * 10**12])
    tracemalloc.start()
    ids = np.concatenate(t.minibatches(100, 100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6
    assert (t.take(ids) == 20).mean() == pytest.approx(0.75, abs=0.02)


def test_in_order_keeps_the_record_and_wraps_around():
    found = trace(range(1, 8)).minibatches(3, 5, in_order=True)
    assert [list(ids) for ids in found] == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1, 2]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 5))
def test_in_order_never_crosses_a_step(sizes, samples):
    steps = np.repeat(np.arange(len(sizes)), sizes)
    t = trace(np.ones(len(steps)), step=steps)
    whole = sum(size // samples for size in sizes)
    assert [ids.tolist() for ids in t.steps] == [np.flatnonzero(steps == step).tolist() for step in range(len(sizes))]
    if samples > t.size or whole == 0:
        with pytest.raises(InputError):
            t.minibatches(samples, 1, in_order=True)
        return
    found = t.minibatches(samples, whole, in_order=True)
    assert all(len(np.unique(steps[ids])) == 1 for ids in found)
    assert len(np.unique(np.concatenate(found))) == whole * samples


@pytest.mark.parametrize(
    "make",
    [
        lambda: trace([]), lambda: trace([0]), lambda: trace([-3]), lambda: trace([2**31]),
        lambda: trace([1, 2], step=[1]), lambda: trace([4], loss=[5]), lambda: trace([4], counts=[-1]),
        lambda: trace([4], counts=[3], step=[1]), lambda: trace([2**31 - 1], counts=[2**40]),
        lambda: Trace("t", np.array([1.5])), lambda: Trace("t", np.array([[1, 2]])),
        lambda: trace([5], counts=[9]).minibatches(2, 1, in_order=True), lambda: trace([1]).minibatches(0, 1),
        lambda: trace([1]).minibatches(1, 0), lambda: trace([5]).steps,
    ],
)  # fmt: skip
def test_what_is_no_trace_and_no_way_to_draw_from_it_is_refused(make):
    with pytest.raises(InputError):
        make()


def test_arrays_of_a_trace_cannot_be_written_but_the_callers_still_can():
    mine = np.array([1, 2, 3])
    t = Trace("t", mine)
    with pytest.raises(ValueError, match="read-only"):
        t.lengths[0] = 9
    mine[0] = 1
