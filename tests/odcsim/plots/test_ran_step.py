"""The picture of a step that ran: pieces that cover it, few enough to be drawn, whatever a trace holds."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from diagnosed import of_ranks, track
from hypothesis import given
from hypothesis import strategies as st

from odcsim.observed.run import Doing, RanStep
from odcsim.plots import diagnosis as drawn
from odcsim.plots.ran_step import MOST, PIECES, chosen, coarse, ran_step, worst

KINDS = st.lists(st.tuples(st.sampled_from([*map(int, Doing)]), st.floats(1e-6, 10)), min_size=1, max_size=60)


def made(pieces, begin=0.0):
    edges = begin + np.concatenate([[0.0], np.cumsum([seconds for _, seconds in pieces])])
    return track(0, [kind for kind, _ in pieces], edges.tolist())


@given(KINDS, st.integers(1, 300), st.floats(0, 100))
def test_stretches_follow_each_other_and_cover_the_step(pieces, slots, begin):
    one = made(pieces, begin)
    stretches = list(coarse(one, begin / 2, slots))  # seconds are told from there
    assert (stretches[0].begin, stretches[-1].end) == (one.edges[0] - begin / 2, one.edges[-1] - begin / 2)
    assert all(a.end == b.begin and a.doing != b.doing for a, b in pairwise(stretches))
    assert len(stretches) <= slots


@given(KINDS)
def test_many_slots_have_as_much_of_each_kind_as_the_track(pieces):
    one, slots = made(pieces), 20_000
    told = dict.fromkeys(Doing, 0.0)
    for stretch in coarse(one, 0.0, slots):
        told[stretch.doing] += stretch.end - stretch.begin
    known = {doing: sum(seconds for kind, seconds in pieces if kind == doing) for doing in Doing}
    off = one.seconds / slots * (len(pieces) + 1)
    assert all(abs(told[doing] - known[doing]) <= off for doing in Doing)


def test_a_step_of_many_ranks_is_a_few_hundred_bars():
    rng = np.random.default_rng(0)
    tracks = tuple(
        made(list(zip(rng.integers(0, 8, 5000).tolist(), rng.random(5000), strict=True))) for _ in range(128)
    )
    figure = ran_step(RanStep(3, 1.0, (), tracks))
    assert sum(len(bars.y) for bars in figure.data) <= max(PIECES, 24 * MOST)
    assert f"{MOST} of 128" in figure.layout.title.subtitle.text


def test_of_many_ranks_both_ends_are_drawn():
    tracks = [track(r, [int(Doing.COMPUTE), int(Doing.MEETING)], [0.0, 1.0 + r, 200.0]) for r in range(128)]
    picked = {one.rank for one in chosen(tracks)}
    assert {0, 127} <= picked
    assert len(picked) == MOST


def test_bars_are_shares_of_a_rank_and_of_a_step():
    told = of_ranks(4)
    figure = drawn.ranks(told.found)
    assert {bars.name: [*bars.x] for bars in figure.data}["waiting"] == [40, 40, 40, 0]
    assert all(sum(bars.x[n] for bars in figure.data) == 100 for n in range(4))
    figure = drawn.parts(told.found)
    assert abs(sum(bars.x[0] for bars in figure.data) - 100) < 1
    assert figure.layout.title.text.startswith("37 %")


def test_a_step_that_took_no_time_is_none_to_draw():
    told = of_ranks(4)
    none = replace(told.run, steps=tuple(replace(step, seconds=0.0) for step in told.run.steps))
    assert worst(none, told.found) is None
    assert worst(told.run, told.found) is not None
