"""The assumptions of docs/model that no other test states by itself, each in the smallest case that shows it."""

from dataclasses import replace

import numpy as np
import pytest

from odcsim import catalog
from odcsim.catalog.estimates import own
from odcsim.catalog.fits import estimate
from odcsim.catalog.rates import rates
from odcsim.cluster import cluster_of
from odcsim.cost import Cost
from odcsim.executors.simulation import Simulation, simulate
from odcsim.profile import Polynomial, Profile
from odcsim.program import program
from odcsim.results.metrics import usage
from odcsim.schedule import Header, Schedule, ScheduleFile

MODEL = catalog.model("qwen2.5-0.5b")
A100 = catalog.gpu("a100")
EVEN = Schedule((3000, 1000, 2000, 500), (((0, 1),), ((2, 3),)))
PROFILE = Profile(
    model=MODEL.name, gpu="a100", fidelity="calibrated", origin="a test",
    forward=Polynomial(0.0, 1e-6, 1e-10), backward=Polynomial(0.0, 2e-6, 3e-10), head=Polynomial(0.0, 4e-6),
    embed=Polynomial(0.0, 5e-7), microbatch=0.25, overhead=0.5, optimizer=2.0, publish=1.0,
)  # fmt: skip


COST = Cost(MODEL, PROFILE, cluster_of(A100, 2))


def rows(schedule: Schedule = EVEN) -> dict[str, np.ndarray]:
    """Seconds by what is timed, of the first microbatch [device]."""
    steps = program(MODEL.layers, 1, "collective")
    table = COST.durations(steps, COST.load([schedule]))
    return {what: table[i, 0] for i, (what, _) in enumerate(steps.durations)}


def test_compute_is_forward_backward_and_the_microbatch_constant_and_nothing_else():
    header = Header("native", MODEL.name, "a test", 10**6, 2, 0)
    used = usage(simulate(ScheduleFile(header, (EVEN,)), Simulation(COST, "on-demand", "analytic")))
    work = 0.0
    for lengths in ((3000, 1000), (2000, 500)):
        tokens, squares = sum(lengths), sum(n * n for n in lengths)
        per_layer = (1e-6 + 2e-6) * tokens + (1e-10 + 3e-10) * squares
        work += MODEL.layers * per_layer + (4e-6 + 2 * 5e-7) * tokens + 0.25
    assert used.compute.sum() == pytest.approx(work)


def test_a_packed_microbatch_costs_the_sum_of_its_samples_squares():
    forward = rows()["forward"]
    assert forward == pytest.approx([1e-6 * 4000 + 1e-10 * (3000**2 + 1000**2), 1e-6 * 2500 + 1e-10 * (4 + 0.25) * 1e6])


def test_the_constant_of_a_microbatch_does_not_grow_with_its_tokens():
    longer = replace(EVEN, lengths=(9000, 9000, 9000, 9000))
    assert rows()["overhead"].tolist() == rows(longer)["overhead"].tolist() == [0.5, 0.5]


def test_the_catalogue_moves_an_optimizer_step_through_memory():
    profile = estimate(MODEL, A100, 8)
    shard = MODEL.parameters / 8 / (A100.memory_bandwidth * rates("ampere").moved)
    assert (profile.optimizer, profile.publish) == (
        pytest.approx(28 * shard),
        pytest.approx(6 * shard + own.seconds(MODEL)),
    )
