"""Collectives at full strength: two streams, copy engines, and layers that stay whole from forward to backward."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim.catalog.estimates import memory
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.evaluate import measure
from odcsim.decide.setting import plan
from odcsim.executors.simulation import Simulation
from odcsim.program import SYNCS

STRONGER = ({"streams": "two"}, {"reshard": False}, {"streams": "two", "reshard": False}, {"copies": "engines"})


@pytest.fixture(scope="module")
def asked():
    """Transfers between two nodes take about as long as compute, so that it matters how they are run."""
    words = {"gpu": "h100", "devices": 16, "minibatch": 2, "minibatches": 6, "max_tokens": 3000, "sharding": "full"}
    setting = ask("uniform:min=100,max=3000", "qwen3-0.6b", **words)
    cluster = setting.cost.cluster
    slow = replace(cluster, nic_bandwidth=cluster.nic_bandwidth / 20)
    return replace(setting, cost=replace(setting.cost, cluster=slow))


def makespans(setting, sync: str, executor: str = "analytic", **choices) -> np.ndarray:
    how = Simulation(setting.cost.by(**choices), sync, executor)
    return measure(plan(setting, "lb-micro"), how).usage.makespan


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("choices", STRONGER, ids=str)
def test_nothing_is_slower_that_waits_for_less(asked, sync, choices):
    usual, stronger = makespans(asked, sync), makespans(asked, sync, **choices)
    assert (stronger <= usual * (1 + 1e-12)).all()


def test_each_makes_collectives_faster_where_transfers_show(asked):
    usual = makespans(asked, "collective").sum()
    assert all(makespans(asked, "collective", **choices).sum() < 0.999 * usual for choices in STRONGER[:3])


def test_on_demand_has_two_streams_anyway(asked):
    assert (makespans(asked, "on-demand") == makespans(asked, "on-demand", streams="two")).all()


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("choices", STRONGER[:3], ids=str)
def test_both_executors_agree_to_the_last_bit(asked, sync, choices):
    assert makespans(asked, sync, **choices).tolist() == makespans(asked, sync, "des", **choices).tolist()


def test_a_layer_that_stays_whole_is_gathered_once(asked):
    def gathers(**choices) -> int:
        steps = asked.cost.by(sync="collective", **choices).program(3).steps
        return sum(step.kind == "gather" for step in steps)

    layers = asked.cost.model.layers
    assert gathers() - gathers(reshard=False) == 3 * layers


def test_it_takes_the_room_of_all_layers(asked):
    model, recipe = asked.cost.model, asked.cost.by(sync="collective").recipe
    less, more = (memory.estimate(model, 16, 4096, replace(recipe, reshard=reshard)) for reshard in (True, False))
    assert more.unsharded == 2.0 * model.parameters
    assert more.total > less.total


def test_a_comparison_has_both_at_once(asked):
    few = replace(asked, minibatches=2)
    strong = compare(replace(few, cost=few.cost.by(streams="two", reshard=False)))
    usual = compare(few)
    for row, other in zip(strong.rows, usual.rows, strict=True):
        assert row.makespan_seconds <= other.makespan_seconds * (1 + 1e-12)
        assert row.memory_bytes > other.memory_bytes
