"""Laws of traces, of the minibatches drawn from them, and of plans in arrays, which are those in tuples."""

import copy
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.schedule import NOTHING, Schedule, flattened
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
    """But in order, which keeps the record and wraps around."""
    t = trace(range(1, 101))
    same, again, other = (np.array(t.minibatches(50, 4, seed=s)) for s in (3, 3, 4))
    assert (same == again).all()
    assert (same != other).any()
    assert (same[:2] != same[2:]).any()
    found = trace(range(1, 8)).minibatches(3, 5, in_order=True)
    assert [list(ids) for ids in found] == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1, 2]]


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
    with pytest.raises(ValueError, match="read-only"):
        Trace("t", mine).lengths[0] = 9
    mine[0] = 1


# Plans in arrays

DEVICES = st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=4).map(tuple)
PLANS = st.lists(DEVICES, min_size=1).map(tuple)
VALUES = np.array([0.1, 0.7, 1e9, 3.3, 1e-9, 2.0, 5.5, 0.3, 7.1, 1.9])


@given(PLANS, PLANS, st.permutations(range(10)))
def test_what_was_flattened_is_the_same_plan(plan, other, numbers):
    flat = flattened(plan)
    assert flat.nested() == plan
    assert flat != plan
    assert (flat == flattened(other)) == (plan == other)
    assert flat == flattened(plan)
    renamed = tuple(tuple(tuple(numbers[i] for i in part) for part in device) for device in plan)
    assert flat.numbered(np.array(numbers)).nested() == renamed
    assert flat.of_sums(VALUES).tolist() == [sum([VALUES[i] for i in part]) for device in plan for part in device]


@given(PLANS, st.lists(st.tuples(st.lists(st.integers(0, 9)).map(tuple), st.integers(0, 99))))
def test_who_takes_an_entry_runs_it_behind_its_own(plan, drawn):
    entries, takers = [entry for entry, _ in drawn], [taker % len(plan) for _, taker in drawn]
    found = Schedule.of(range(10), plan, queue=entries).realised(takers)
    behind = [[entry for entry, taker in zip(entries, takers, strict=True) if taker == d] for d in range(len(plan))]
    assert found.devices == tuple((*device, *more) for device, more in zip(plan, behind, strict=True))


@pytest.mark.parametrize("queue", [(), ((3,), (2,))])
def test_a_schedule_by_arrays_is_the_one_by_tuples(queue):
    plain = Schedule.of((5, 6, 7, 8), (((0, 1),), ()), (7, 8, 9, 3), (1, 2, 3, 4), queue)
    unassigned = replace(plain, flat=NOTHING, waiting=NOTHING)

    def made():
        return unassigned.dealt(flattened(plain.devices), flattened((queue,)) if queue else NOTHING)

    assert made() == plain == copy.copy(made()) == pickle.loads(pickle.dumps(made())) == replace(made())
    assert repr(made()) == repr(plain)
    assert (made().queue, made().fullest) == (queue, 11)


@given(st.lists(st.integers(1, 50), min_size=8, max_size=200), st.integers(1, 6), st.integers(1, 12), st.data())
def test_samples_alike_in_length_meet(lengths, samples, count, data):
    """As many at a time of a shuffle are sorted, the longest first, and minibatches cut of all of them."""
    samples, alike = min(samples, len(lengths)), data.draw(st.integers(1, 60))
    t = trace(lengths)
    found = t.minibatches(samples, count, alike=alike)
    assert len(found) == count
    assert all(len(minibatch) == samples for minibatch in found)
    fill = min(len(lengths) // samples, max(count, -(-alike // samples)))
    rng = np.random.default_rng(0)
    ids = rng.choice(len(lengths), fill * samples, replace=False)
    order = [i for at in range(0, len(ids), alike) for i in sorted(ids[at : at + alike], key=lambda i: -lengths[i])]
    plain = {tuple(order[at : at + samples]) for at in range(0, len(order), samples)}
    first = {tuple(minibatch.tolist()) for minibatch in found[:fill]}
    assert first <= plain
    assert len(first) == min(fill, count)
    assert [m.tolist() for m in found] == [m.tolist() for m in t.minibatches(samples, count, alike=alike)]
