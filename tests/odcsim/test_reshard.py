"""Layers that stay whole from their forward to their backward: no second gather, for their memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import PREFETCHES, SYNCS, schedules

from odcsim import catalog
from odcsim.catalog.estimates import memory
from odcsim.catalog.fits import estimate
from odcsim.cluster import cluster_of
from odcsim.cost import Cost
from odcsim.executors.simulation import EXECUTORS, Simulation, usage
from odcsim.program import ROOT, program
from odcsim.recipe import Recipe

A100, MODEL = catalog.gpu("a100"), catalog.model("r1-distill-qwen-1.5b")


@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from(SYNCS), st.sampled_from(PREFETCHES))
def test_each_layer_is_gathered_once_in_a_microbatch_and_all_else_stays(layers, microbatches, sync, prefetch):
    kept, usual = (program(layers, microbatches, sync, prefetch, reshard=reshard) for reshard in (False, True))
    once = [(m, unit) for m in range(microbatches) for unit in range(ROOT, layers + 1)]
    assert sorted((s.microbatch, s.unit) for s in kept.steps if s.kind == "gather") == once
    left = [(s.kind, s.lane, s.microbatch, s.unit, s.meets) for s in kept.steps if s.kind != "gather"]
    assert left == [(s.kind, s.lane, s.microbatch, s.unit, s.meets) for s in usual.steps if s.kind != "gather"]


@settings(max_examples=15)
@given(found=schedules(4), nic=st.floats(1e8, 1e12))
def test_it_is_never_slower_and_both_executors_agree(found, nic):
    cluster = replace(cluster_of(A100, 4, 2), nic_bandwidth=nic)
    cost = Cost(MODEL, estimate(MODEL, A100, 4), cluster)
    kept, usual = (
        [usage([found], Simulation(cost, executor=executor, reshard=reshard)) for executor in EXECUTORS]
        for reshard in (False, True)
    )
    assert np.array_equal(kept[0].makespan, kept[1].makespan)
    assert (kept[0].makespan <= usual[0].makespan * (1 + 1e-9)).all()


def test_its_price_is_all_layers_in_the_dtype_of_compute():
    kept, usual = (memory.estimate(MODEL, 8, 65536, Recipe(reshard=reshard)) for reshard in (False, True))
    more = (MODEL.layers - memory.LAYERS_GATHERED) * MODEL.layer_parameters
    assert kept.unsharded - usual.unsharded == pytest.approx(2 * more)
