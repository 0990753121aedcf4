"""Hybrid sharding whose nodes exchange layer by layer beside backward, as FSDP2's collectives do it: the rival."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PREFETCHES

from odcsim import catalog
from odcsim.catalog.fits import estimate
from odcsim.cluster import cluster_of
from odcsim.cost import Cost
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.setting import plan
from odcsim.executors.simulation import EXECUTORS, Simulation, simulate, usage
from odcsim.program import EVERY, NODES, ROOT, program
from odcsim.recipe import Recipe
from odcsim.results import metrics
from odcsim.schedule import Schedule

A100, MODEL = catalog.gpu("a100"), catalog.model("llama-3.1-8b")
MEETING = ("collective", "deferred")


def by_layer(layers: int, microbatches: int, sync: str, prefetch: str = "fsdp2"):
    return program(layers, microbatches, sync, prefetch, "hybrid", "layers")


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from(MEETING), st.sampled_from(PREFETCHES))
def test_each_unit_is_summed_once_when_the_last_microbatch_has_pushed_it(layers, microbatches, sync, prefetch):
    p = by_layer(layers, microbatches, sync, prefetch)
    sums = [(i, s) for i, s in enumerate(p.steps) if s.lane == NODES]
    assert [s.unit for _, s in sums] == [*range(layers, 0, -1), ROOT]
    for i, s in sums:
        (push,) = s.after
        assert s.meets
        assert p.leaves_node(s)
        assert (p.steps[push].kind, p.steps[push].unit, p.steps[push].microbatch) == ("push", s.unit, microbatches - 1)
        assert push < i
    optimizer = next(s for s in p.steps if s.kind == "optimizer")
    assert sums[-1][0] in optimizer.after
    assert [s.kind for s in p.steps if s.microbatch == EVERY] == ["meeting", "optimizer"]


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from(["full", "hybrid"]), st.sampled_from(["end", "layers"]))
def test_who_does_not_meet_exchanges_at_the_end(layers, microbatches, sharding, exchange):
    given_so, at_end = (program(layers, microbatches, "on-demand", "fsdp2", sharding, e) for e in (exchange, "end"))
    assert given_so == at_end
    assert program(layers, microbatches, "collective", "fsdp2", "full", exchange).exchange == "end"


def hybrid(sync: str, exchange: str, **network) -> Cost:
    cluster = replace(cluster_of(A100, 16, 4), **network)
    return Cost(MODEL, estimate(MODEL, A100, 16), cluster, Recipe(sync, sharding="hybrid", exchange=exchange))


def even(tokens: int, microbatches: int) -> Schedule:
    each = [tuple((d * microbatches + m,) for m in range(microbatches)) for d in range(16)]
    return Schedule((tokens,) * (16 * microbatches), tuple(each))


@pytest.mark.parametrize("sync", MEETING)
@pytest.mark.parametrize("nic", [1e9, 100e9])
def test_both_executors_agree_to_the_last_bit(sync, nic):
    file = plan(ask("longalign", MODEL.name, gpu="a100", devices=16, minibatch=2, minibatches=2), "lb-micro")
    how = hybrid(sync, "layers", nic_bandwidth=nic)
    fast, slow = (simulate(file, Simulation(how, executor=executor)) for executor in EXECUTORS)
    for one, other in zip(fast.blocks, slow.blocks, strict=True):
        assert np.array_equal(one.asked, other.asked)
        assert np.array_equal(one.had, other.had)
    found = metrics.usage(fast)
    total = found.compute + sum(getattr(found, part) for part in metrics.PARTS)
    np.testing.assert_allclose(total, 16 * found.makespan)


def test_what_backward_hides_costs_nothing_but_the_roots():
    free, busy = (seconds(hybrid("collective", "layers", nic_bandwidth=nic)) for nic in (1e15, 50e9))
    fixed = hybrid("collective", "layers", nic_bandwidth=50e9).transfers(one_sided=False)
    assert busy - free == pytest.approx(fixed["sum root"], rel=0.05)
    assert seconds(hybrid("collective", "end", nic_bandwidth=50e9)) > busy


def seconds(how: Cost) -> float:
    return float(usage([even(8000, 2)], Simulation(how, executor="analytic")).makespan[0])


def test_where_nothing_hides_it_sums_move_as_often_as_bytes_say():
    """Reduced and gathered again: twice the bytes of a push between nodes, over all layers."""
    slow = hybrid("collective", "layers", nic_bandwidth=1e7)
    fixed = slow.transfers(one_sided=False)
    moved = MODEL.layers * fixed["sum layer"] + fixed["sum root"]
    assert moved == pytest.approx(2 * fixed["push between nodes"], rel=1e-3)
    assert seconds(slow) == pytest.approx(moved, rel=0.05)


def test_every_node_steps_all_states_by_itself():
    layers, end = (hybrid("collective", e).transfers(one_sided=False)["optimizer"] for e in ("layers", "end"))
    assert layers == 4 * end


def test_a_comparison_has_the_rival_exchange_as_fsdp2_does():
    """So hybrid collectives may be faster than full ones on a slow network, which they were measured to be."""
    setting = ask("longalign", MODEL.name, gpu="a100", devices=128, minibatch=1, minibatches=1, sharding="hybrid")
    cluster = replace(setting.cost.cluster, nic_bandwidth=50e9 / 8)
    found = compare(replace(setting, cost=replace(setting.cost, cluster=cluster)))
    rows = {(r.balancer, r.sync): r for r in found.rows}
    assert rows["lb-micro", "collective"].recipe.exchange == "layers"
    assert rows["lb-mini", "on-demand"].recipe.exchange == "end"
    assert rows["lb-micro", "collective"].over_full > 1
