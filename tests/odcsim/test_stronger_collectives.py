"""Collectives at full strength: two streams, copy engines, and layers that stay whole from forward to backward."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PREFETCHES

from odcsim.catalog.estimates import memory
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.evaluate import measure
from odcsim.decide.setting import plan
from odcsim.executors.simulation import Simulation
from odcsim.program import ROOT, SYNCS, program

STRONGER = ({"streams": "two"}, {"reshard": False}, {"streams": "two", "reshard": False}, {"copies": "engines"})


@pytest.fixture(scope="module")
def asked():
    """Transfers between two nodes take about as long as compute, so that it matters how they are run."""
    words = {"gpu": "h100", "devices": 16, "minibatch": 2, "minibatches": 6, "max_tokens": 3000, "sharding": "full"}
    setting = ask("uniform:min=100,max=3000", "qwen3-0.6b", **words)
    cluster = setting.cost.cluster
    slow = replace(cluster, nic_bandwidth=cluster.nic_bandwidth / 20)
    return replace(setting, cost=replace(setting.cost, cluster=slow))


def makespans(setting, sync: str, **choices) -> np.ndarray:
    return measure(plan(setting, "lb-micro"), Simulation(setting.cost.by(**choices), sync)).usage.makespan


@pytest.mark.parametrize("sync", SYNCS)
def test_nothing_is_slower_that_waits_for_less(asked, sync):
    """Collectives are faster where transfers show; on-demand has two streams anyway."""
    usual = makespans(asked, sync)
    stronger = [makespans(asked, sync, **choices) for choices in STRONGER]
    assert all((spans <= usual * (1 + 1e-12)).all() for spans in stronger)
    if sync == "collective":
        assert all(spans.sum() < 0.999 * usual.sum() for spans in stronger[:3])
    if sync == "on-demand":
        assert (stronger[0] == usual).all()


@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from(SYNCS), st.sampled_from(PREFETCHES))
def test_a_layer_that_stays_whole_is_gathered_once_and_all_else_stays(layers, microbatches, sync, prefetch):
    kept, usual = (program(layers, microbatches, sync, prefetch, reshard=reshard) for reshard in (False, True))
    once = [(m, unit) for m in range(microbatches) for unit in range(ROOT, layers + 1)]
    assert sorted((s.microbatch, s.unit) for s in kept.steps if s.kind == "gather") == once
    left = [(s.kind, s.lane, s.microbatch, s.unit, s.meets) for s in kept.steps if s.kind != "gather"]
    assert left == [(s.kind, s.lane, s.microbatch, s.unit, s.meets) for s in usual.steps if s.kind != "gather"]


def test_it_takes_the_room_of_all_layers(asked):
    model, recipe = asked.cost.model, asked.cost.by(sync="collective").recipe
    less, more = (memory.estimate(model, 16, 4096, replace(recipe, reshard=reshard)) for reshard in (True, False))
    assert more.unsharded == 2.0 * model.parameters
    extra = (model.layers - memory.LAYERS_GATHERED) * model.layer_parameters
    assert more.unsharded - less.unsharded == pytest.approx(2 * extra)
    assert more.total > less.total


def test_a_comparison_has_both_at_once(asked):
    few = replace(asked, minibatches=2)
    strong, usual = (compare(replace(few, cost=few.cost.by(**choices))) for choices in (STRONGER[2], {}))
    for row, other in zip(strong.rows, usual.rows, strict=True):
        assert row.makespan_seconds <= other.makespan_seconds * (1 + 1e-12)
        assert row.memory_bytes > other.memory_bytes
