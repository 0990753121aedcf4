"""What the search leaves out could not have been among the best."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import Trace
from odcsim.decide import room
from odcsim.decide.advice import search, ways
from odcsim.decide.advice.offers import best
from odcsim.decide.advice.wish import Wish
from odcsim.decide.answer import NOTABLE
from odcsim.program import SYNCS
from odcsim.question import Question
from odcsim.results import capacity

CHAT = np.minimum(np.random.default_rng(3).lognormal(7, 1, 400), 8191).astype(int) + 1


def site_of(lengths, model, devices, slow=(), each=2):
    trace, batch = Trace("drawn", np.array(lengths)), each * devices
    asked = Question(trace=trace, model=model, global_batch=batch, minibatches=3)
    site = ways.site(Wish(asked, ("h100",), (devices,)), "h100", devices)
    slower = [
        replace(s, cost=replace(s.cost, cluster=replace(s.cost.cluster, slow=tuple(slow)))) for s in site.settings
    ]
    return replace(site, settings=tuple(slower))


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 20_000), min_size=160, max_size=160),
    st.sampled_from(["qwen3-0.6b", "qwen2.5-7b", "qwen3-30b-a3b"]),
    st.sampled_from([8, 16]),
    st.sampled_from([1, 10]),
    st.lists(st.tuples(st.integers(0, 7), st.floats(0.5, 2.0)), max_size=3, unique_by=lambda pair: pair[0]),
)
def test_no_way_is_faster_than_the_least_that_it_could_take(lengths, model, devices, each, slow):
    site = site_of(lengths, model, devices, slow, each)
    for way in site.ways():
        assert search.least_seconds(site, way) <= search.screened(site, way).sum() * (1 + 1e-12), way.name


def test_most_ways_are_not_planned(monkeypatch):
    """Where all layers need not be run again, ways that do so are behind whatever their plans."""
    asked, screened = [], search.screened
    monkeypatch.setattr(search, "screened", lambda site, way: asked.append(way) or screened(site, way))
    site = site_of(CHAT, "qwen3-8b", 16, each=16)
    found = search.finalists(site)
    assert 0 < len(asked) < found.tried * 2 / 3


def drawn(median, sigma, longest):
    lengths = np.random.default_rng(7).lognormal(np.log(median), sigma, 600)
    return Trace("drawn", np.minimum(lengths, longest).astype(np.int64) + 1)


CASES = {
    "chat, two nodes": (drawn(1500, 0.9, 8192), "qwen3-8b", "h100", 16, 64),
    "long, one node": (drawn(12_000, 0.8, 65_536), "r1-distill-qwen-7b", "a100", 8, 32),
    "even lengths": (Trace("even", np.full(600, 4096)), "qwen3-8b", "h100", 8, 32),
}


def everything(site):
    """Seconds of every way over a finer grid of limits, with on-demand and without."""
    found = {True: [], False: []}
    for setting, sync in product(site.settings, SYNCS):
        first = ways.Way(setting, sync, "lb-micro")
        device, longest = site.wish.trace.mean * setting.minibatch, site.wish.trace.longest
        most = room.fullest(first.cost, longest, capacity.filled(site.memory), int(max(longest, room.ENOUGH * device)))
        for limit in room.limits(longest, most, device, 1.12):
            way = replace(first, setting=replace(setting, max_tokens=limit))
            for each in (way, *way.others()):
                seconds = search.timed(site, each).seconds * search.tokens(site, each, site.minibatches)
                found[each.on_demand].append(seconds / site.minibatches)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_choice_is_within_a_percent_of_exhaustive_search(name):
    trace, model, gpu, devices, batch = CASES[name]
    asked = Question(trace=trace, model=model, global_batch=batch, minibatches=2)
    site = ways.site(Wish(asked, (gpu,), (devices,)), gpu, devices)
    found, every = best(site), everything(site)
    with_it, without, chosen = (
        run.row.makespan_seconds / run.row.minibatches for run in (found.with_it, found.without, found.chosen)
    )
    assert found.tried < len(every[True]) + len(every[False])
    assert without <= 1.01 * min(every[False])
    assert with_it <= 1.01 * min(every[True])
    lead = min(every[False]) / min(every[True])
    ideal = min(every[True]) if lead >= NOTABLE else min(every[False])
    assert chosen <= 1.01 * ideal or abs(lead / NOTABLE - 1) < 0.01  # too near to tell which side
