"""Fixtures and settings for all tests."""

import pytest
from hypothesis import HealthCheck, settings

from odcsim.setting import Setting, ask, plan
from odcsim.simulation import Simulation, simulate

# Derandomized, so that a red run is red for everybody; a loaded machine must not turn a law red.
settings.register_profile(
    "laws", max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("laws")


@pytest.fixture(scope="session")
def setting() -> Setting:
    """The golden setting with few minibatches and devices, for what needs no statistics."""
    return ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=4, minibatch=5, max_tokens=65536, minibatches=6)


@pytest.fixture(scope="session")
def schedules(setting):
    """A sealed schedule file whose devices run unequal numbers of microbatches."""
    return plan(setting, "lb-mini")


@pytest.fixture(scope="session")
def timeline(setting, schedules):
    return simulate(schedules, Simulation(setting.cost, "on-demand", "analytic"))
