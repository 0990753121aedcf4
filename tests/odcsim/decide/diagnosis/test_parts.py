"""Where steps went: the parts sum to the step whatever was seen, and causes that are known are named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seen_runs import drawn, run_of_known

from odcsim.decide.diagnosis import lines
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


@settings(max_examples=200)
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


def track(rank, *pieces):
    """Of pieces (kind, until, meeting, microbatch) from 0."""
    kinds, ends, met, numbers = zip(*((*piece, *(NO, NO)[len(piece) - 2 :]) for piece in pieces), strict=True)
    whole = (np.array(of, dtype=np.int64) for of in (kinds, met, numbers))
    kinds, met, numbers = whole
    return Track(rank, kinds, np.array([0.0, *ends]), met, numbers)


def met(*came, done=None, ranks=None, kind="all-gather"):
    there = {rank: moment for rank, moment in enumerate(came) if moment is not None}
    return Met(kind, 0, ranks or len(there), there, done if done is not None else max(there.values()))


def run_of(*steps, **known):
    ranks = known.pop("ranks", max(track.rank for step in steps for track in step.tracks) + 1)
    seen = tuple(sorted({track.rank for step in steps for track in step.tracks}))
    return SeenRun("a test", ranks, seen, tuple(steps), **known)


def shares(found):
    return {part.name: round(part.seconds, 9) for part in found.parts if part.seconds > 1e-12}


C, M, T, H, L, G, E, S = (
    Doing.COMPUTE, Doing.MEETING, Doing.TRANSFER, Doing.HOST, Doing.LOADER, Doing.COLLECTOR, Doing.EDGE, Doing.STAGE,
)  # fmt: skip


def test_a_wait_is_by_what_the_last_did_longer():
    """Rank 0 comes at 2, rank 1 at 8: 3 seconds more of compute, 2 of the loader and 1 of its host."""
    quick = track(0, (C, 2.0, NO, 0), (M, 9.0, 0))
    late = track(1, (L, 2.0), (C, 7.0, NO, 0), (H, 8.0), (M, 9.0, 0))
    found = broken_down(run_of(RanStep(0, 9.0, (), (quick, late), (met(2.0, 8.0, done=9.0),))))
    assert shares(found) == {"compute": 3.5, "transfer": 1.0, "lengths": 1.5, "loader": 2.0, "launch": 1.0}
    assert [rank.caused for rank in found.ranks] == [0.0, 6.0]
    assert [rank.waiting for rank in found.ranks] == pytest.approx([6 / 9, 0.0])
    assert [rank.compute for rank in found.ranks] == pytest.approx([2 / 9, 5 / 9])


def test_what_the_last_did_less_of_shortens_the_wait_in_proportion():
    """4 seconds more of compute and 2 of the collector, 3 less of the loader: a wait of 3."""
    quick = track(0, (L, 3.0), (C, 4.0), (M, 7.0, 0))
    late = track(1, (G, 2.0), (C, 7.0))
    found = broken_down(run_of(RanStep(0, 7.0, (), (quick, late), (met(4.0, 7.0),))))
    assert shares(found) == {"compute": 3.0, "loader": 1.5, "lengths": 1.0, "collector": 1.5}


def test_who_waited_itself_passes_its_causes_on():
    """Rank 2's loader holds rank 1 up in a meeting of the two, and rank 1 then rank 0 in one of its own."""
    tracks = (
        track(0, (C, 1.0), (M, 6.0, 1)),
        track(1, (C, 1.0), (M, 5.0, 0), (C, 6.0)),
        track(2, (L, 4.0), (C, 5.0), (C, 6.0)),
    )
    meetings = met(None, 1.0, 5.0), met(1.0, 6.0)
    found = broken_down(run_of(RanStep(0, 6.0, (), tracks, meetings)))
    assert shares(found) == pytest.approx({"compute": 5 / 3, "lengths": 1 / 3, "loader": (4 + 4 + 4) / 3})
    assert found.ranks[2].caused == pytest.approx(9.0)  # of which 4 as rank 1's wait
    assert [(late.rank, late.why) for late in found.late] == [(2, "loader")]


def test_of_a_slow_device_the_seconds_beyond_the_usual_pace_are_its_device_s():
    """For equal kernels it takes twice as long: of 8 seconds 4 are work, and the quick rank's own work is 3."""
    quick = track(0, (C, 3.0), (M, 8.0, 0))
    step = RanStep(0, 8.0, (), (quick, track(1, (C, 8.0))), (met(3.0, 8.0),))
    found = broken_down(run_of(step, alike={"gemm": {0: 1.0, 1: 2.0}}))
    assert [rank.pace for rank in found.ranks] == pytest.approx([1.0, 2.0])
    assert shares(found) == pytest.approx({"compute": 5.5, "lengths": 0.5, "device": 2.0})


def test_padding_is_the_share_of_compute_that_holds_nobody():
    ran = RanMicrobatch(0, 0, 6.0, lengths=(300, 100), computed=600)
    found = broken_down(run_of(RanStep(0, 7.0, (ran,), (track(0, (C, 6.0, NO, 0), (T, 7.0)),))))
    assert shares(found) == pytest.approx({"compute": 4.0, "padding": 2.0, "transfer": 1.0})


def test_the_microbatch_that_most_of_a_wait_is_for_is_named_with_all_its_meetings():
    ran = [RanMicrobatch(1, m, s, lengths=(n,)) for m, (s, n) in enumerate([(1.0, 10), (5.0, 900), (1.0, 20)])]
    ran += [RanMicrobatch(0, m, 1.0, lengths=(10,)) for m in range(3)]
    late = track(1, (C, 1.0, NO, 0), (C, 4.0, NO, 1), (C, 6.0, NO, 1), (C, 7.0, NO, 2))
    quick = track(0, (C, 1.0, NO, 0), (C, 1.6, NO, 1), (M, 4.0, 0, 1), (C, 4.4, NO, 1), (M, 6.0, 1, 1), (C, 7.0, NO, 2))
    step = RanStep(4, 7.0, tuple(ran), (quick, late), (met(1.6, 4.0), met(4.4, 6.0)))
    found = broken_down(run_of(step))
    assert [(of.step, of.rank, of.microbatch, of.tokens) for of in found.late] == [(4, 1, 1, 900)]
    assert found.late[0].seconds == pytest.approx(4.0)
    end = track(0, (C, 1.0, NO, 0), (C, 2.0, NO, 1), (C, 3.0, NO, 2), (M, 7.0, 0))
    alone = broken_down(run_of(RanStep(4, 7.0, tuple(ran), (end, late), (met(3.0, 7.0),)), sync="on-demand"))
    assert [(of.rank, of.microbatch, of.tokens) for of in alone.late] == [(1, 1, 900)]


def test_where_no_microbatch_took_most_the_rank_s_whole_step_is_named():
    ran = [RanMicrobatch(1, m, 2.0, lengths=(100,)) for m in range(3)]
    late = track(1, *((C, 2.0 + 2 * m, NO, m) for m in range(3)))
    step = RanStep(0, 6.0, tuple(ran), (track(0, (C, 1.0), (M, 6.0, 0)), late), (met(1.0, 6.0),))
    assert [(of.rank, of.microbatch, of.tokens) for of in broken_down(run_of(step)).late] == [(1, -1, 300)]


def test_no_more_than_the_worst_microbatches_are_named_and_the_worst_first():
    steps = []
    for number in range(30):
        wait = 1.0 + (7 * number) % 30
        ran = (RanMicrobatch(1, 0, 1.0 + wait, lengths=(number + 1,)), RanMicrobatch(0, 0, 1.0, lengths=(1,)))
        tracks = track(0, (C, 1.0, NO, 0), (M, 1.0 + wait, 0)), track(1, (C, 1.0 + wait, NO, 0))
        steps.append(RanStep(number, 1.0 + wait, ran, tracks, (met(1.0, 1.0 + wait),)))
    late = broken_down(run_of(*steps)).late
    assert [round(of.seconds) for of in late] == [*range(30, 10, -1)]


def test_a_collective_of_which_one_rank_is_seen_is_bytes_for_as_long_as_the_shortest_of_its_like():
    step = RanStep(
        0,
        10.0,
        (),
        (track(0, (C, 1.0), (M, 4.0, 0), (C, 5.0), (M, 6.0, 1), (C, 7.0), (M, 9.0, 2), (L, 10.0)),),
        (met(1.0, done=4.0, ranks=2), met(5.0, done=6.0, ranks=2), met(7.0, done=9.0, ranks=2, kind="all-reduce")),
    )
    found = broken_down(run_of(step, ranks=2))
    assert shares(found) == {"compute": 3.0, "transfer": 1.0 + 1.0 + 2.0, "untold": 2.0, "loader": 1.0}
    assert any("needs the files of rank 1" in line for line in found.cannot)


def test_what_nobody_says_the_cause_of_is_untold():
    pieces = (C, 1.0), (M, 2.0, NO), (S, 4.0), (E, 5.0)
    found = broken_down(run_of(RanStep(0, 5.0, (), (track(0, *pieces),))))
    assert shares(found) == {"compute": 1.0, "edges": 1.0, "untold": 3.0}


def test_steps_that_begin_a_little_later_on_one_rank_are_as_those_that_do_not():
    """Rank 1 is in its loader over the step's end on rank 0: the wait at the next meeting is the loader's."""
    steps = (
        RanStep(0, 3.0, (), (track(0, (C, 2.0)), track(1, (C, 2.0), (L, 3.0)))),
        RanStep(
            1,
            4.0,
            (),
            (
                Track(0, np.array([C, M]), np.array([2.0, 3.0, 6.0]), np.array([NO, 0]), np.array([NO, NO])),
                Track(1, np.array([L, C]), np.array([3.0, 5.0, 6.0]), np.array([NO, NO]), np.array([NO, NO])),
            ),
            (met(3.0, 6.0),),
        ),
    )
    found = broken_down(run_of(*steps))
    assert found.by_step["loader"] == pytest.approx([0.5, 1.0 + 1.5])
    assert found.by_step["edges"] == pytest.approx([0.0, 0.0])


def test_a_step_of_which_nothing_is_known_is_untold():
    found = broken_down(SeenRun("a test", 2, (0, 1), (RanStep(0, 3.0, ()), RanStep(1, 0.0, ()))))
    assert shares(found) == {"untold": 1.5}


def test_nothing_says_whether_a_rank_is_slow_and_that_is_said():
    step = RanStep(0, 8.0, (), (track(0, (C, 3.0), (M, 8.0, 0)), track(1, (C, 8.0))), (met(3.0, 8.0),))
    assert any(line.startswith("whether a rank is slow") for line in broken_down(run_of(step)).cannot)


def test_a_wait_s_window_begins_where_the_last_had_waited_for_whom_it_holds_up_now():
    """Rank 0's loader holds rank 1 up, then rank 1's compute rank 0: the loader is not to blame for the second."""
    tracks = (
        track(0, (L, 4.0), (C, 5.0), (C, 6.0), (M, 9.0, 1)),
        track(1, (C, 1.0), (M, 5.0, 0), (C, 9.0)),
    )
    found = broken_down(run_of(RanStep(0, 9.0, (), tracks, (met(5.0, 1.0), met(6.0, 9.0)))))
    assert shares(found) == {"compute": (2 + 5) / 2, "loader": (4 + 4) / 2, "lengths": 3 / 2}


def test_bytes_that_a_later_rank_hides_are_waited_for_as_long_as_it_came_later():
    """Rank 1 asks a layer ahead, a second after rank 0, and computes while bytes move for two; rank 0 has nothing else
    to do: one of the two seconds is rank 1's, as is the one before it came."""
    tracks = track(0, (C, 1.0), (M, 4.0, 0), (M, 4.5, 1), (C, 5.0)), track(1, (C, 4.0), (M, 4.5, 1), (C, 5.0))
    step = RanStep(0, 5.0, (), tracks, (met(1.0, 2.0, done=4.0), met(4.0, 4.0, done=4.5)))
    found = broken_down(run_of(step))
    assert shares(found) == {"compute": (1.5 + 4.5) / 2, "lengths": 2 / 2, "transfer": (1.0 + 2 * 0.5) / 2}


@settings(max_examples=50)
@given(st.lists(st.floats(0, 2), min_size=3, max_size=3), st.integers(0, 2), st.sampled_from([-1e-6, 1e-6]))
def test_a_little_later_makes_a_little_difference(came, moved, jitter):
    """Ranks 1 and 2 hide behind their compute what rank 0 waits for."""

    def waited(*came):
        done = max(came) + 1.0
        quick = track(0, (C, came[0]), (M, done, 0), (C, 9.0))
        tracks = quick, track(1, (C, 9.0)), track(2, (C, came[2]), (H, came[2] + 0.5), (C, 9.0))
        return broken_down(run_of(RanStep(0, 9.0, (), tracks, (met(*came, done=done),))))

    later = [max(at + jitter * (rank == moved), 0.0) for rank, at in enumerate(came)]
    assert waited(*came).share("transfer") == pytest.approx(waited(*later).share("transfer"), abs=1e-5)


def test_who_idled_at_the_end_of_a_step_is_not_late_in_the_next_for_it():
    """Rank 0's loader holds rank 1 up in each step, and rank 0 is done a second before rank 1 with each."""

    def step(number):
        begin = 5.0 * number
        ended = np.array([0, 3, 4, 5]) + begin, np.array([0, 1, 4, 5]) + begin
        own = (L, C, E), (C, M, C)
        tracks = (Track(r, np.array(own[r]), ended[r], np.array([NO, r - 1, NO]), np.full(3, NO)) for r in range(2))
        return RanStep(number, 5.0, (), tuple(tracks), (met(begin + 4.0, begin + 1.0),))

    assert shares(broken_down(run_of(*map(step, range(6))))) == {"compute": 1.5, "loader": 3.0, "edges": 0.5}


def test_who_begins_a_step_later_than_the_one_that_waits_for_it_is_late_by_that():
    first = RanStep(0, 2.0, (), (track(0, (C, 2.0)), track(1, (C, 1.0), (E, 2.0))), ())
    quick = Track(0, np.array([C, M]), np.array([2.0, 3.0, 5.0]), np.array([NO, 0]), np.full(2, NO))
    late = Track(1, np.array([C]), np.array([4.0, 5.0]), np.array([NO]), np.array([NO]))
    found = broken_down(run_of(first, RanStep(1, 3.0, (), (quick, late), (met(3.0, 5.0),))))
    assert found.by_step["edges"][1] == pytest.approx(1.0)


def test_a_rank_that_no_file_shows_in_some_step_is_named():
    def step(number, *seen):
        pieces = ((C, 1.0, NO, 0), (M, 2.0, 0)), ((C, 2.0, NO, 0),)
        begin, tracks = 2.0 * number, [track(rank, *pieces[rank]) for rank in seen]
        tracks = tuple(replace(one, edges=one.edges + begin) for one in tracks)
        there = tuple(RanMicrobatch(r, 0, 1.0 + r, 2.0, (100 + 100 * r + number,)) for r in seen)
        came = {rank: begin + 1.0 + rank for rank in seen}
        return RanStep(number, 2.0, there, tracks, (Met("all-reduce", 0, 2, came, begin + 2.0),))

    whole = [step(number, 0, 1) for number in range(6)]
    assert not any("no file shows it" in line for line in broken_down(run_of(*whole)).cannot)
    found = broken_down(run_of(*whole[:3], step(3, 0), *whole[4:]))
    assert found.by_step["untold"][3] > 0
    assert any(line.startswith("what rank 1 did in 1 of 6 steps") for line in found.cannot)
    assert not any("no single rank is behind it" in line for line in found.cannot)


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_are_apart_are_broken_down_one_by_one_to_the_same_parts(monkeypatch, seed):
    run = run_of_known(drawn(np.random.default_rng(seed), {"lengths", "loader", "collector", "transfer"}, 3))
    whole = broken_down(run)
    assert lines.stretches(run.steps) == [(0, len(run.steps))]
    monkeypatch.setattr(lines, "PIECES", 1)
    assert lines.stretches(run.steps) == [(place, place + 1) for place in range(len(run.steps))]
    found = broken_down(run)
    for name, seconds in found.by_step.items():
        assert seconds == pytest.approx(whole.by_step[name], abs=1e-9)
    assert [late.rank for late in found.late] == [late.rank for late in whole.late]


def test_a_rank_that_did_nothing_in_any_step_can_have_come_last():
    empty = Track(0, np.array([], int), np.array([0.0]), np.array([], int), np.array([], int))
    waits = Track(1, np.array([int(Doing.MEETING)]), np.array([0.0, 1.0]), np.array([0]), np.array([NO]))
    met = Met("all-gather", 0, 2, {0: 1.0, 1: 0.0}, 1.0)
    found = broken_down(SeenRun("a test", 2, (0, 1), (RanStep(0, 1.0, (), (empty, waits), (met,)),)))
    assert found.seconds == pytest.approx(0.5)
