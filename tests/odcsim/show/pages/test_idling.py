"""The first sentences of timelines' page: what idles, how much, and which part of it is the largest."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.decide.setting import plan
from odcsim.executors.simulation import Simulation, simulate
from odcsim.plots import NAMES
from odcsim.results import metrics
from odcsim.results.metrics import PARTS, Usage
from odcsim.show.pages import idling


def used(compute, parts):
    total = compute + sum(parts)
    one = dict(zip(PARTS, (np.array([part]) for part in parts), strict=True))
    return Usage(np.array([total]), np.array([compute]), **one)


@given(st.floats(1, 1e6), st.lists(st.floats(0, 1e6), min_size=5, max_size=5))
def test_it_names_the_largest_part_and_its_share(compute, parts):
    usage = used(compute, parts)
    said = idling.sentence(usage, "a + b")
    most = max(parts) / (compute + sum(parts))
    assert f"{usage.idle():.1%} of the time" in said
    if usage.idle() >= idling.LITTLE:
        assert said.endswith(f", {most:.1%} of the time.")
        largest = [name for name, seconds in zip(PARTS, parts, strict=True) if seconds == max(parts)]
        assert any(NAMES[name].split(" (")[0].split(" its")[0] in said for name in largest)
    else:
        assert "hardly idle" in said


@pytest.fixture
def met(setting):
    return simulate(plan(setting, "lb-micro"), Simulation(setting.cost, "collective", "analytic"))


def test_the_fastest_of_the_same_samples_comes_first(timeline, met):
    first, *each = idling.sentences([met, timeline])
    spans = [metrics.usage(t).makespan.sum() for t in (met, timeline)]
    assert first.startswith(
        f"on-demand + lb-mini is {spans[0] / spans[1]:.2f} times as fast as collective + lb-micro: "
    )
    assert [re.search("under ([^;]*);", said)[1] for said in each] == ["collective + lb-micro", "on-demand + lb-mini"]


def test_nothing_is_compared_that_ran_something_else(timeline, met):
    other = replace(met, tokens=met.tokens + 1)
    assert all(said.startswith("Devices idle") for said in idling.sentences([timeline, other]))


def test_timelines_of_one_name_are_told_apart(timeline):
    said = idling.sentences([timeline, timeline])
    executor = timeline.about.executor
    assert [f"lb-mini ({n}, {executor})" in words for n, words in enumerate(said, 1)] == [True, True]
    assert len(said) == 2
