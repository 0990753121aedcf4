"""Laws of what only the discrete-event executor answers: shared links, jitter."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import ONCE, Case, cases, one_node

from odcsim.cluster import Cluster
from odcsim.executors import analytic, des
from odcsim.program import program


def shared(devices: int, per_node: int, nics: int, **values) -> Cluster:
    return Cluster(devices, per_node, 3e11, 2.5e10, nics, **values)


def transfers(arrivals: list[float], seconds: list[float], cluster: Cluster) -> np.ndarray:
    """When each device's root gather ends, if it begins at its arrival and nothing else takes time."""
    steps = program(1, 1, "on-demand", "none")
    table = np.zeros((len(steps.durations), 1, cluster.devices))
    table[steps.durations.index(("overhead", 0)), 0, : len(arrivals)] = arrivals
    table[steps.durations.index(("gather root", 0)), 0, : len(seconds)] = seconds
    gather = next(i for i, s in enumerate(steps.steps) if s.kind == "gather")
    return des.run(steps, table, cluster)[1][gather, 0, : len(arrivals)]


def fluid(arrivals: list[float], seconds: list[float], nics: int) -> list[float]:
    """Processor sharing the naive way: from one arrival or end to the next, everybody gets an equal share."""
    left, end, now = dict(enumerate(seconds)), [0.0] * len(seconds), 0.0
    while left:
        active = [i for i in left if arrivals[i] <= now]
        rate = min(1.0, nics / max(1, len(active)))
        step = min([arrivals[i] - now for i in left if arrivals[i] > now] + [left[i] / rate for i in active])
        now += step
        for i in active:
            left[i] -= step * rate
            if left[i] <= 1e-12:
                end[i] = now
                del left[i]
    return end


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 5)), min_size=1, max_size=6), st.integers(1, 5))
def test_a_link_shares_its_nics_equally(jobs, nics):
    arrivals, seconds = map(list, zip(*jobs, strict=True))
    ends = transfers(arrivals, seconds, shared(12, 6, nics))
    np.testing.assert_allclose(ends, fluid(arrivals, seconds, nics), rtol=1e-9, atol=1e-9)
    at_once = transfers([0.0] * 6, [1.5] * 6, shared(12, 6, nics))
    np.testing.assert_allclose(at_once, 1.5 * max(1, 6 / nics), rtol=1e-12)


def test_nodes_do_not_share_their_nics_and_pushes_not_with_gathers():
    ends = transfers([0.0] * 4, [2.0, 0.0, 2.0, 1.0], shared(4, 2, 1))
    np.testing.assert_array_equal(ends, [2.0, 0.0, 3.0, 2.0])
    steps = program(1, 1, "on-demand", "none")
    table = np.zeros((len(steps.durations), 1, 4))
    table[steps.durations.index(("gather root", 0)), 0, 0] = 2.0
    table[steps.durations.index(("push layer", 0)), 0, 1] = 2.0
    had = des.run(steps, table, shared(4, 2, 1))[1]
    assert had[:, 0, :2].max() == 2.0


@given(cases(devices=(4, 4), minibatches=(1, 2), layers=(1, 4), microbatches=(1, 3)), st.sampled_from([1, 2]))
def test_shared_links_are_never_faster(case, per_node):
    """Condition: every device follows its program. (A pool that hands out work at run time breaks it: Graham 1969.)"""
    nodes_of_two = shared(4, 2, per_node)
    alone, together = (des.run(case.program, case.durations, c)[1] for c in (None, nodes_of_two))
    assert (together >= alone * (1 - 1e-9) - 1e-12).all()
    if per_node == 2 or not case.program.one_sided:
        assert np.array_equal(alone, together)


def jittered(case: Case, seeds: list[int], jitter: float = 0.3) -> np.ndarray:
    cluster = one_node(case.counts.shape[1], jitter=jitter)
    return np.array(des.run(case.program, case.durations, cluster, [np.random.default_rng(s) for s in seeds]))


@given(cases(minibatches=(2, 3), microbatches=(1, 3)), st.randoms(use_true_random=False))
def test_a_minibatch_is_jittered_the_same_whatever_it_is_simulated_with(case, random):
    order = random.sample(range(case.counts.shape[0]), case.counts.shape[0])
    whole = jittered(case, order)
    assert np.array_equal(whole, jittered(case, order))
    for b, seed in enumerate(order):
        alone = Case(case.program, case.counts[[b]], case.durations[:, [b]])
        assert np.array_equal(whole[:, :, [b]], jittered(alone, [seed]))


def test_jitter_keeps_the_mean_has_its_size_and_touches_compute_alone():
    """It depends on the seed and needs one. 4,200 draws: mean and deviation are known to 0.003."""
    case = constant(700)
    plain = np.array(analytic.run(case.program, case.durations))
    asked, had = jittered(case, [5], jitter=0.2)
    computes = np.array([s.kind == "compute" for s in case.program.steps])
    factors = (had - asked)[computes, 0]
    assert (factors.mean(), factors.std()) == (pytest.approx(1, abs=0.012), pytest.approx(0.2, abs=0.012))
    others = np.array([not s.meets and s.kind != "compute" for s in case.program.steps])
    assert ((had - asked)[others] == 0).all()
    assert not np.array_equal(had, jittered(case, [1], jitter=0.2)[1])
    assert np.array_equal(des.run(case.program, case.durations, one_node(3, jitter=0.3)), plain)
    assert np.array_equal(jittered(case, [0], jitter=0.0), plain)


def constant(layers: int, sync: str = "on-demand") -> Case:
    """One second for every compute and nothing else."""
    steps = program(layers, 1, sync)
    kinds = {s.duration for s in steps.steps if s.kind == "compute"}
    table = np.array([np.full((1, 3), float(row in kinds)) for row in range(len(steps.durations))])
    return Case(steps, np.ones((1, 3), int), table)


@given(cases(syncs=("collective",), microbatches=(1, 2)), st.integers(0, 99))
def test_all_syncs_meet_the_same_jitter(case, seed):
    """So a comparison of syncs compares syncs: what they compute is the same, and who is faster stays so.

    Conditions as without jitter: equal seconds, dedicated links, no time for what on-demand adds.
    """
    free = case.without(*ONCE)
    seeds = [seed + b for b in range(case.counts.shape[0])]
    collective = jittered(free, seeds)
    computes = [i for i, s in enumerate(free.program.steps) if s.kind == "compute"]
    for sync in ("deferred", "on-demand"):
        other = free.under(sync)
        times = jittered(other, seeds)
        assert (times[1].max(axis=(0, 2)) <= collective[1].max(axis=(0, 2)) * (1 + 1e-12)).all()
        same = [i for i, s in enumerate(other.program.steps) if s.kind == "compute"]
        spent = (collective[1] - collective[0])[computes]
        np.testing.assert_allclose((times[1] - times[0])[same], spent, rtol=1e-9, atol=1e-9)


def test_a_shared_link_and_jitter_together_end():
    """A large case for the timers: 16 devices on 2 nodes with 3 NICs each, all at odds with each other."""
    steps = program(8, 3, "on-demand")
    cluster = replace(shared(16, 8, 3), jitter=0.5)
    table = np.random.default_rng(3).exponential(1.0, (len(steps.durations), 2, 16))
    asked, had = des.run(steps, table, cluster, [np.random.default_rng(s) for s in (1, 2)])
    assert (had >= asked).all()
    assert (had[-1] == had[-1].max(axis=1, keepdims=True)).mean() < 1.0
