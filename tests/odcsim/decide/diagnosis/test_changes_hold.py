"""Whatever a run may look like, what is said of it is a promise that holds together, or what cannot be said."""

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from ran_runs import found_of

from odcsim.decide.diagnosis.changes import changes
from odcsim.fitting.measurements import Transfer
from odcsim.observed.run import Met, RanMicrobatch, RanStep, SeenRun

SECONDS = st.one_of(st.just(0.0), st.floats(1e-9, 1e3))
LONG = st.floats(1e-6, 1e3)
SYNCS = ("collective", "deferred", "on-demand")


@st.composite
def microbatches(draw, ranks):
    held = []
    for rank in range(ranks):
        for number in range(draw(st.integers(0, 3))):
            lengths = tuple(draw(st.lists(st.integers(1, 200_000), max_size=4)))
            tokens, padding = draw(st.integers(0, 10**6)), draw(st.integers(0, 1000))
            known = RanMicrobatch(rank, number, draw(SECONDS), draw(SECONDS), lengths, tokens, sum(lengths) + padding)
            held.append(known)
    return tuple(held)


@st.composite
def meetings(draw, ranks):
    kind = draw(st.sampled_from(("all-gather", "reduce-scatter", "all-reduce", "barrier")))
    came = draw(st.dictionaries(st.integers(0, ranks - 1), SECONDS))
    return Met(kind, draw(st.sampled_from((0, 1, 10**8))), ranks, came, draw(SECONDS))


@st.composite
def seen(draw):
    ranks = draw(st.integers(1, 4))
    count = draw(st.integers(1, 3))
    steps = tuple(
        RanStep(n, draw(LONG), draw(microbatches(ranks)), (), tuple(draw(st.lists(meetings(ranks), max_size=3))))
        for n in range(count)
    )
    known = tuple(rank for rank in range(ranks) if draw(st.booleans()))
    moved = st.builds(
        Transfer, st.sampled_from(("all-gather", "reduce-scatter")), st.just(ranks), st.just(10**6), SECONDS
    )
    return SeenRun(
        "a run", ranks, known, steps, draw(st.sampled_from(SYNCS)), draw(st.integers(0, 3)),
        transfers=tuple(draw(st.lists(moved, max_size=3))), updates=tuple(draw(st.lists(SECONDS, max_size=3))),
        rests=draw(st.sampled_from(("lengths", "tokens", "seconds"))),
    )  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(seen(), st.sampled_from(({}, {"model": "qwen3-1.7b", "gpu": "h100"}, {"trainer": "trl", "price": 2.0})))
def test_any_run_gets_gains_that_hold_together_or_is_told_why_not(run, asked):
    found = changes(run, found_of(run), asked)
    assert found.ways or found.cannot or found.replayed > 0
    for way in found.ways:
        assert 1 < way.low <= way.gain <= way.high < math.inf
        assert 0 <= way.seconds < math.inf
        assert way.dollars_a_day is None or way.dollars_a_day > 0
    json.dumps([[dict(way.row) for way in found.ways], dict(found.inputs), found.replayed], allow_nan=False)
