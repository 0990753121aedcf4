"""The expression that a search screens by, against the scan."""

import pytest

import odcsim
from odcsim.decide.setting import assign, drawn
from odcsim.executors import quick, simulation
from odcsim.executors.simulation import Simulation

CASES = [
    ("lognormal:median=1500,sigma=0.9,max=8192", "qwen3-8b", "h100", 16, 4, 24_576),
    ("longalign", "r1-distill-qwen-1.5b", "a100", 8, 4, 65_536),
]


@pytest.mark.parametrize("sharding", ["full", "hybrid"])
@pytest.mark.parametrize("case", CASES, ids=["two nodes", "one node"])
def test_it_is_as_near_to_the_scan_as_screening_needs(case, sharding):
    trace, model, gpu, devices, minibatch, limit = case
    asked = {"gpu": gpu, "devices": devices, "minibatch": minibatch, "max_tokens": limit, "sharding": sharding}
    setting = odcsim.ask(trace, model, minibatches=6, **asked)
    minibatches = drawn(setting)
    for balancer, sync in (("sorted-slice", "collective"), ("sorted-slice", "deferred"), ("lb-mini", "on-demand")):
        how = Simulation(setting.cost, sync, "analytic", exchange="layers")
        schedules = assign(setting, balancer, minibatches).schedules
        scanned = simulation.usage(schedules, how).makespan
        assert quick.seconds(how.cost, schedules) == pytest.approx(scanned, rel=0.05)
