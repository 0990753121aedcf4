"""Whatever a run may look like, its parts sum to the step, and gains hold together or it is said why there are none."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ran_runs import found_of

from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.decide.diagnosis.changes import changes
from odcsim.decide.diagnosis.outcome import PARTS
from odcsim.measurements import Transfer
from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, SeenRun, Track

SECONDS = st.one_of(st.just(0.0), st.floats(1e-9, 1e3))
SHORT = st.floats(0, 10, allow_subnormal=False)
SYNCS = st.sampled_from(["collective", "deferred", "on-demand"])


@st.composite
def tracks(draw, rank: int, begin: float, meetings: int):
    """Any pieces at all, in meetings that the rank may not have been in."""
    longs = draw(st.lists(SHORT, max_size=8))
    kinds = [draw(st.sampled_from([*Doing])) for _ in longs]
    met = [draw(st.integers(NO, meetings - 1)) if kind == Doing.MEETING else NO for kind in kinds]
    numbers = [draw(st.integers(NO, 2)) for _ in longs]
    kinds, met, numbers = (np.array(of, dtype=np.int64) for of in (kinds, met, numbers))
    return Track(rank, kinds, np.cumsum([begin, *longs]), met, numbers)


@st.composite
def meetings(draw, ranks: int, kinds: tuple[str, ...], longest: float):
    came = draw(st.dictionaries(st.integers(0, ranks - 1), st.floats(0, 0.75 * longest), max_size=ranks))
    there = draw(st.integers(1, ranks))
    size, done = draw(st.sampled_from([0, 1, 10**8])), draw(st.floats(0, longest))
    return Met(draw(st.sampled_from(kinds)), size, there, came, done)


@st.composite
def microbatches(draw, ranks: int, seconds: st.SearchStrategy):
    found = []
    for rank in range(ranks):
        for number in range(draw(st.integers(0, 3))):
            lengths = tuple(draw(st.lists(st.integers(1, 200_000), max_size=4)))
            tokens, padding = draw(st.integers(0, 10**6)), draw(st.sampled_from([0, 0, 1, 1000]))
            computed = sum(lengths) + padding if padding else 0
            found.append(RanMicrobatch(rank, number, draw(seconds), draw(seconds), lengths, tokens, computed))
    return tuple(found)


@st.composite
def runs(draw, seconds=SECONDS, longest=1e3, tracked=False):
    """Any run at all, with tracks of some ranks or none."""
    ranks, steps, kinds = draw(st.integers(1, 4)), [], ("all-gather", "reduce-scatter", "all-reduce", "barrier")
    for number in range(draw(st.integers(1, 3))):
        there = draw(st.lists(st.integers(0, ranks - 1), unique=True, max_size=ranks)) if tracked else ()
        met = tuple(draw(st.lists(meetings(ranks, kinds, longest), max_size=3)))
        begin = draw(st.sampled_from([0.0, 7.0 * number, 20.0 * number]))
        seen = tuple(draw(tracks(r, begin + draw(st.sampled_from([0.0, 0.1])), len(met))) for r in there)
        took = draw(SHORT if tracked else st.floats(1e-6, 1e3))
        steps.append(RanStep(number, took, draw(microbatches(ranks, seconds)), seen, met))
    moved = st.builds(Transfer, st.sampled_from(kinds[:2]), st.just(ranks), st.just(10**6), SECONDS)
    return SeenRun(
        "a run", ranks, tuple(r for r in range(ranks) if tracked or draw(st.booleans())), tuple(steps), draw(SYNCS),
        draw(st.integers(0, 3)), rests=draw(st.sampled_from(("lengths", "tokens", "seconds"))),
        transfers=tuple(draw(st.lists(moved, max_size=3))), updates=tuple(draw(st.lists(SECONDS, max_size=3))),
        alike=draw(st.sampled_from([{}, {"a kernel": {r: 1.0 + 0.4 * (r == 1) for r in range(ranks)}}])),
    )  # fmt: skip


@settings(max_examples=200)
@given(runs(st.sampled_from([0.0, 0.5, 2.0]), 80, tracked=True))
def test_parts_sum_to_the_step_and_none_is_below_nothing(run):
    found = break_down(run)
    assert [part.name for part in found.parts] == [*PARTS] == [*found.by_step]
    assert all(part.seconds >= 0 and 0 <= part.low <= part.share <= part.high <= 1 + 1e-9 for part in found.parts)
    for place, step in enumerate(run.steps):
        assert all(seconds[place] >= 0 for seconds in found.by_step.values())
        whole = sum(seconds[place] for seconds in found.by_step.values())
        if step.tracks:
            assert whole == pytest.approx(np.mean([track.seconds for track in step.tracks]), abs=1e-9)
        elif not step.microbatches:
            assert whole == pytest.approx(step.seconds, abs=1e-9)
        else:  # as long as its microbatches at least
            assert whole >= step.seconds - 1e-9
    assert sum(part.share for part in found.parts) == pytest.approx(1.0 if found.seconds else 0.0)


@settings(max_examples=200)
@given(runs(), st.sampled_from(({}, {"model": "qwen3-1.7b", "gpu": "h100"}, {"trainer": "trl", "price": 2.0})))
def test_any_run_gets_gains_that_hold_together_or_is_told_why_not(run, asked):
    found = changes(run, found_of(run), asked)
    assert found.ways or found.cannot or found.replayed > 0
    for way in found.ways:
        assert 1 < way.low <= way.gain <= way.high < math.inf
        assert 0 <= way.seconds < math.inf
        assert way.dollars_a_day is None or way.dollars_a_day > 0
    json.dumps([[dict(way.row) for way in found.ways], dict(found.inputs), found.replayed], allow_nan=False)
