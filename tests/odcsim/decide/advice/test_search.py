"""What the search leaves out could not have been among the best."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import Trace
from odcsim.decide.advice import search, ways
from odcsim.decide.advice.wish import Wish
from odcsim.question import Question

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
