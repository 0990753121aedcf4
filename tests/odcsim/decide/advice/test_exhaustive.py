"""The search against all there is to search: every balancer, sync, sharding, recompute and a finer grid of limits."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from odcsim import Trace
from odcsim.decide import room
from odcsim.decide.advice import search, ways
from odcsim.decide.advice.offers import best
from odcsim.decide.advice.wish import Wish
from odcsim.decide.answer import NOTABLE
from odcsim.program import SYNCS
from odcsim.question import Question
from odcsim.results import capacity

pytestmark = pytest.mark.slow


def drawn(median, sigma, longest, samples=1500):
    lengths = np.random.default_rng(7).lognormal(np.log(median), sigma, samples)
    return Trace("drawn", np.minimum(lengths, longest).astype(np.int64) + 1)


CHAT, LONG = drawn(1500, 0.9, 8192), drawn(12_000, 0.8, 65_536)
EVEN = Trace("even", np.full(600, 4096))
CASES = {
    "chat, two nodes": (CHAT, "qwen3-8b", "h100", 16, 64),
    "chat, one node": (CHAT, "qwen2.5-1.5b", "a100", 8, 64),
    "long, one node": (LONG, "r1-distill-qwen-7b", "a100", 8, 32),
    "long, few samples": (LONG, "qwen2.5-1.5b", "h100", 16, 32),
    "even lengths": (EVEN, "qwen3-8b", "h100", 8, 32),
    "memory is short": (CHAT, "qwen3-14b", "a100", 8, 32),
}
# Where a large limit, full recompute, full sharding and the usual balancer are not what to take, by this much.
OBVIOUS = {"chat, two nodes": 1.05, "chat, one node": 1.05}


def site_of(case):
    trace, model, gpu, devices, batch = case
    asked = Question(trace=trace, model=model, global_batch=batch, minibatches=6)
    return ways.site(Wish(asked, (gpu,), (devices,)), gpu, devices)


def mean(run):
    """Seconds of a minibatch."""
    return run.row.makespan_seconds / run.row.minibatches


def seconds(site, way):
    """The same, as the search times it."""
    return search.timed(site, way).seconds * search.tokens(site, way, site.minibatches) / site.minibatches


def everything(site):
    """Seconds of every way, with on-demand and without."""
    found = {True: [], False: []}
    for setting, sync in product(site.settings, SYNCS):
        first = ways.Way(setting, sync, "lb-micro")
        device = site.wish.trace.mean * setting.minibatch
        longest = site.wish.trace.longest
        most = room.fullest(first.cost, longest, capacity.filled(site.memory), int(max(longest, room.ENOUGH * device)))
        for limit in room.limits(longest, most, device, 1.12):
            way = replace(first, setting=replace(setting, max_tokens=limit))
            for each in (way, *way.others()):
                found[each.on_demand].append(seconds(site, each))
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_choice_is_within_a_percent_of_exhaustive_search(name):
    site = site_of(CASES[name])
    found, every = best(site), everything(site)
    assert found.tried < len(every[True]) + len(every[False])
    assert mean(found.without) <= 1.01 * min(every[False])
    assert mean(found.with_it) <= 1.01 * min(every[True])
    lead = min(every[False]) / min(every[True])
    ideal = min(every[True]) if lead >= NOTABLE else min(every[False])
    assert mean(found.chosen) <= 1.01 * ideal or abs(lead / NOTABLE - 1) < 0.01  # too near to tell which side


@pytest.mark.parametrize(("name", "times"), OBVIOUS.items())
def test_the_obvious_choice_is_wrong_there(name, times):
    """The largest limit that fits, full recompute, full sharding, collective + lb-micro."""
    site = site_of(CASES[name])
    setting = site.settings[0]
    limit = site.limits(setting, "collective", capacity.filled(site.memory))[-1]
    obvious = seconds(site, ways.Way(replace(setting, max_tokens=limit), "collective", "lb-micro"))
    assert obvious >= times * mean(best(site).chosen)
