"""Hierarchical transfers: each device of a node brings in its part of what is far, once, and the node keeps it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import PREFETCHES, cases, schedules

from odcsim import catalog
from odcsim.catalog.fits import estimate
from odcsim.cluster import cluster_of
from odcsim.cost import Cost
from odcsim.decide import answer, answer_words
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.executors import analytic, des
from odcsim.executors.simulation import EXECUTORS, Simulation, usage
from odcsim.program import EVERY, NODES, SYNCS, program
from odcsim.recipe import Recipe
from odcsim.schedule import Schedule

A100, MODEL = catalog.gpu("a100"), catalog.model("r1-distill-qwen-14b")


def hierarchical(layers: int, microbatches: int, prefetch: str = "fsdp2"):
    return program(layers, microbatches, "on-demand", prefetch, "hybrid", hierarchical=True)


def cost(far: str, devices: int = 16, per_node: int = 8, sync: str = "on-demand", **network) -> Cost:
    cluster = replace(cluster_of(A100, devices, per_node), **network)
    return Cost(MODEL, estimate(MODEL, A100, devices), cluster, Recipe(sync, far=far))


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from(PREFETCHES))
def test_each_unit_is_brought_in_once_and_its_first_forward_waits_for_it(layers, microbatches, prefetch):
    p, full = hierarchical(layers, microbatches, prefetch), program(layers, microbatches, "on-demand", prefetch)
    brought = {s.unit: i for i, s in enumerate(p.steps) if s.lane == NODES}
    assert list(brought) == list(range(layers + 1))  # in the order of use
    assert p.begin == len(brought)
    for unit, i in brought.items():
        assert (p.steps[i].after, p.steps[i].meets) == ((), False)
        assert p.leaves_node(p.steps[i])
        after = [s for s in p.steps if i in s.after]
        assert [(s.kind, s.microbatch, s.unit) for s in after] == [("gather", 0, unit), ("compute", 0, unit)]
    inside = p.steps[p.begin : p.end]
    assert not any(p.leaves_node(s) for s in inside)
    for mine, usual in zip(inside, full.steps[: full.end], strict=True):
        assert {n - p.begin for n in mine.after if n >= p.begin} == set(usual.after)
        assert replace(mine, after=(), duration=0) == replace(usual, after=(), duration=0)
    assert [s.kind for s in p.steps[p.end :]] == ["meeting", "push", "optimizer", "publish", "meeting"]
    assert {s.microbatch for s in p.steps[p.end :]} == {EVERY}


@given(case=cases(syncs=("on-demand",), shardings=("full",)), seed=st.integers(0, 99))
def test_both_executors_agree_to_the_last_bit(case, seed):
    p = hierarchical(case.program.layers, case.program.microbatches, case.program.prefetch)
    known = dict(zip(case.program.durations, case.durations, strict=True))
    fresh = np.random.default_rng(seed).exponential(1.0, case.durations.shape[1:])
    table = np.array([known.get(timed, fresh) for timed in p.durations])
    fast, slow = analytic.run(p, table), des.run(p, table)
    assert np.array_equal(fast, slow)


@settings(max_examples=20)
@given(found=schedules(4, queued=True))
def test_a_queue_runs_alike_in_both_executors(found):
    how = cost("hierarchical", 4, 2)
    one, other = (usage([found], Simulation(how, executor=executor)) for executor in EXECUTORS)
    assert np.allclose(one.makespan, other.makespan, rtol=1e-12)
    assert np.allclose(one.gather, other.gather, rtol=1e-9)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_queues_entry_waits_for_nothing_that_its_device_has_waited_for(executor):
    """The network is slow: were it waited for again, device 0 would be back in time for an entry."""
    lengths = (60000, 1000, 1000, 1000, 1000, 1000)
    queued = Schedule(lengths, (((0,),), ((1,),)), queue=((2,), (3,), (4,), (5,)))
    planned = Schedule(lengths, (((0,),), ((1,), (2,), (3,), (4,), (5,))))
    how = Simulation(cost("hierarchical", 2, 1, nic_bandwidth=1e9), executor=executor)
    one, other = (usage([schedule], how).makespan for schedule in (queued, planned))
    assert np.allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_on_one_node_and_where_devices_meet_nothing_changes(sync, executor):
    found = Schedule((9000, 3000) * 8, tuple(((2 * d,), (2 * d + 1,)) for d in range(8)))
    one, other = (
        usage([found], Simulation(cost(far, 8, 8, sync), executor=executor)) for far in ("each", "hierarchical")
    )
    assert np.array_equal(one.makespan, other.makespan)
    two = [cost(far, 8, 4, sync) for far in ("each", "hierarchical")]
    assert (two[0].ran == two[1].ran) == (sync != "on-demand")
    assert (two[1].program(1).begin > 0) == (sync == "on-demand")
    assert two[1].ran == two[1].ran.on(2)  # as it is run, it is run


@settings(max_examples=20)
@given(found=schedules(8), nic=st.floats(1e9, 1e12))
def test_it_is_never_slower_than_hybrid_sharding(found, nic):
    """The same bytes between nodes, of which none is waited for any longer."""
    how = cost("hierarchical", 8, 4, nic_bandwidth=nic, latency=0.0)
    hybrid = replace(how, recipe=Recipe(sharding="hybrid"))
    ours, theirs = (usage([found], Simulation(each, executor="analytic")).makespan for each in (how, hybrid))
    assert (ours <= theirs * (1 + 1e-9)).all()


def test_a_unit_enters_a_node_once_through_all_its_cards():
    """Then it is gathered from the node, as on a node alone."""
    free = {"latency": 0.0, "nic_share": 1.0}
    far, each, alone = cost("hierarchical", **free), cost("each", **free), cost("each", 8, 8, **free)
    size = 2 * MODEL.layer_parameters
    brought = far.transfers(one_sided=True)["bring layer"]
    assert brought == pytest.approx(size / 2 / (8 * far.cluster.nic_bandwidth))
    assert far.transfers(one_sided=True)["gather layer"] == alone.transfers(one_sided=True)["gather layer"]
    assert 8 * brought <= each.transfers(one_sided=True)["gather layer"] * (1 + 1e-9)


def test_a_comparison_has_it_for_on_demand_alone_and_says_what_it_brings_and_costs():
    slow = {"gpu": "a100", "devices": 16, "minibatch": 2, "minibatches": 2, "sharding": "full"}
    setting = ask("aime-rl", MODEL.name, **slow, far="hierarchical")
    usual = compare(ask("aime-rl", MODEL.name, **slow))
    compared = compare(setting)
    for row in compared.rows:
        before = usual.row(row.balancer, row.sync)
        if row.sync == "on-demand":
            assert row.over_full == pytest.approx(before.makespan_seconds / row.makespan_seconds)
            assert row.memory_terms["in_node"] > before.memory_terms["in_node"] == 0
        else:
            assert row == replace(before, **{n: getattr(row, n) for n in ("speedup_best_collective",)})
    reply = answer.answer(compared)
    told = [line for line in answer_words.sentences(compared, reply) if line.startswith("Hierarchical transfers ")]
    assert len(told) == 1
    assert "GB more memory per device" in told[0] or "it has none" in told[0]
