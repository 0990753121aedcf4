"""Where steps went: the parts sum to the step whatever was seen, and causes that are known are named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.decide.diagnosis.found import PARTS
from odcsim.decide.diagnosis.parts import broken_down
from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, SeenRun, Track

SECONDS = st.floats(0, 10, allow_subnormal=False)


@st.composite
def tracks(draw, rank: int, begin: float, meetings: int):
    """Any pieces at all, in meetings that the rank may not have been in."""
    longs = draw(st.lists(SECONDS, max_size=8))
    kinds = [draw(st.sampled_from([*Doing])) for _ in longs]
    met = [draw(st.integers(NO, meetings - 1)) if kind == Doing.MEETING else NO for kind in kinds]
    numbers = [draw(st.integers(NO, 2)) for _ in longs]
    whole = (np.array(of, dtype=np.int64) for of in (met, numbers))
    return Track(rank, np.array(kinds, dtype=np.int64), np.cumsum([begin, *longs]), *whole)


@st.composite
def meetings(draw, ranks: int):
    came = draw(st.dictionaries(st.integers(0, ranks - 1), st.floats(0, 60), max_size=ranks))
    kind = draw(st.sampled_from(["all-gather", "reduce-scatter"]))
    return Met(kind, draw(st.integers(0, 2)), draw(st.integers(1, ranks)), came, draw(st.floats(0, 80)))


@st.composite
def microbatches(draw, rank: int, number: int):
    lengths = tuple(draw(st.lists(st.integers(1, 5000), max_size=3)))
    padding = draw(st.sampled_from([0, 0, 1, 100]))
    return RanMicrobatch(
        rank,
        number,
        draw(st.sampled_from([0.0, 0.5, 2.0])),
        draw(st.sampled_from([0.0, 1.0, 3.0])),
        lengths,
        computed=sum(lengths) + padding if padding else 0,
    )


@st.composite
def steps(draw, number: int, ranks: int):
    there = draw(st.lists(st.integers(0, ranks - 1), unique=True, max_size=ranks))
    met = draw(st.lists(meetings(ranks), max_size=3))
    ran = [draw(microbatches(r, m)) for r in range(ranks) for m in range(draw(st.integers(0, 3)))]
    begin = draw(st.sampled_from([0.0, 7.0 * number, 20.0 * number]))
    seen = tuple(draw(tracks(r, begin + draw(st.sampled_from([0.0, 0.1])), len(met))) for r in there)
    return RanStep(number, draw(SECONDS), tuple(ran), seen, tuple(met))


@st.composite
def runs(draw):
    ranks = draw(st.integers(1, 4))
    every = tuple(draw(steps(number, ranks)) for number in range(draw(st.integers(1, 3))))
    alike = draw(st.sampled_from([{}, {"a kernel": {r: 1.0 + 0.4 * (r == 1) for r in range(ranks)}}]))
    sync = draw(st.sampled_from(["collective", "deferred", "on-demand"]))
    return SeenRun("a test", ranks, tuple(range(ranks)), every, sync, alike=alike)


@settings(max_examples=500)
@given(runs())
def test_parts_sum_to_the_step_and_none_is_below_nothing(run):
    found = broken_down(run)
    assert [part.name for part in found.parts] == [*PARTS] == [*found.by_step]
    assert all(part.seconds >= 0 and 0 <= part.low <= part.share <= part.high <= 1 + 1e-9 for part in found.parts)
    for place, step in enumerate(run.steps):
        assert all(seconds[place] >= 0 for seconds in found.by_step.values())
        if step.tracks:
            whole = np.mean([track.seconds for track in step.tracks])
        elif not step.microbatches:
            whole = step.seconds
        else:  # as long as its microbatches at least
            whole = None
            assert sum(seconds[place] for seconds in found.by_step.values()) >= step.seconds - 1e-9
        if whole is not None:
            assert sum(seconds[place] for seconds in found.by_step.values()) == pytest.approx(whole, abs=1e-9)
    shares = sum(part.share for part in found.parts)
    assert shares == pytest.approx(1.0 if found.seconds else 0.0)
