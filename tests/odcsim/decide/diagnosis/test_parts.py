"""Where steps went, of runs that are written down by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seen_runs import drawn, run_of_known

from odcsim.decide.diagnosis import lines
from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, SeenRun, Track

KINDS = dict(zip("CMTHLGES", "COMPUTE MEETING TRANSFER HOST LOADER COLLECTOR EDGE STAGE".split(), strict=True))
PADDED = RanMicrobatch(0, 0, 6.0, lengths=(300, 100), computed=600)


def track(rank, pieces, begin=0.0):
    """`C2 M5/0:1`: computes until 2, then is in meeting 0 until 5, which is in its microbatch 1."""
    kinds, edges, numbers = [], [begin], {"/": [], ":": []}
    for piece in pieces.split():
        until, _, within = piece[1:].replace("/", " /").replace(":", " :").partition(" ")
        kinds.append(int(Doing[KINDS[piece[0]]]))
        edges.append(begin + float(until))
        for sign, of in numbers.items():
            of.append(next((int(word[1:]) for word in within.split() if word[0] == sign), NO))
    kinds, met, held = (np.array(of, dtype=np.int64) for of in (kinds, numbers["/"], numbers[":"]))
    return Track(rank, kinds, np.array(edges), met, held)


def met(*came, done=None, ranks=None, kind="all-gather"):
    there = {rank: moment for rank, moment in enumerate(came) if moment is not None}
    return Met(kind, 0, ranks or len(there), there, done if done is not None else max(there.values()))


def step_of(number, pieces, meetings=(), ran=(), begin=0.0):
    """As long as its first rank's."""
    tracks = tuple(track(rank, one, begin) for rank, one in enumerate(pieces))
    return RanStep(number, tracks[0].seconds, tuple(ran), tracks, tuple(meetings))


def run_of(*steps, ranks=0, **known):
    seen = tuple(sorted({track.rank for step in steps for track in step.tracks}))
    return SeenRun("a test", ranks or len(seen), seen, tuple(steps), **known)


def shares(found):
    return {part.name: round(part.seconds, 9) for part in found.parts if part.seconds > 1e-12}


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_are_apart_are_broken_down_one_by_one_to_the_same_parts(monkeypatch, seed):
    run = run_of_known(drawn(np.random.default_rng(seed), {"lengths", "loader", "collector", "transfer"}, 3))
    whole = break_down(run)
    assert lines.stretches(run.steps) == [(0, len(run.steps))]
    monkeypatch.setattr(lines, "PIECES", 1)
    assert lines.stretches(run.steps) == [(place, place + 1) for place in range(len(run.steps))]
    found = break_down(run)
    for name, seconds in found.by_step.items():
        assert seconds == pytest.approx(whole.by_step[name], abs=1e-9)
    assert [late.rank for late in found.late] == [late.rank for late in whole.late]


CASES = {  # what each rank did, its meetings, and the parts of the step
    "a wait is by what the last did longer": (
        ["C2:0 M9/0", "L2 C7:0 H8 M9/0"],
        [met(2.0, 8.0, done=9.0)],
        {"compute": 3.5, "transfer": 1.0, "lengths": 1.5, "loader": 2.0, "launch": 1.0},
    ),
    "what the last did less of shortens the wait in proportion": (
        ["L3 C4 M7/0", "G2 C7"],
        [met(4.0, 7.0)],
        {"compute": 3.0, "loader": 1.5, "lengths": 1.0, "collector": 1.5},
    ),
    "who waited itself passes its causes on": (
        ["C1 M6/1", "C1 M5/0 C6", "L4 C5 C6"],
        [met(None, 1.0, 5.0), met(1.0, 6.0)],
        {"compute": 5 / 3, "lengths": 1 / 3, "loader": 4.0},
    ),
    "a window begins where the last had waited for whom it holds up now": (
        ["L4 C5 C6 M9/1", "C1 M5/0 C9"],
        [met(5.0, 1.0), met(6.0, 9.0)],
        {"compute": 3.5, "loader": 4.0, "lengths": 1.5},
    ),
    "bytes that a later rank hides are waited for as long as it came later": (
        ["C1 M4/0 M4.5/1 C5", "C4 M4.5/1 C5"],
        [met(1.0, 2.0, done=4.0), met(4.0, 4.0, done=4.5)],
        {"compute": 3.0, "lengths": 1.0, "transfer": 1.0},
    ),
    "of one rank a collective is bytes for as long as the shortest of its like": (
        ["C1 M4/0 C5 M6/1 C7 M9/2 L10"],
        [met(1.0, done=4.0, ranks=2), met(5.0, done=6.0, ranks=2), met(7.0, done=9.0, ranks=2, kind="all-reduce")],
        {"compute": 3.0, "transfer": 4.0, "untold": 2.0, "loader": 1.0},
    ),
    "a rank that did nothing can have come last": (["", "M1/0"], [met(1.0, 0.0)], {"edges": 0.5}),
    "what nobody says the cause of is untold": (["C1 M2 S4 E5"], [], {"compute": 1.0, "edges": 1.0, "untold": 3.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_second_is_of_its_cause(case):
    pieces, meetings, expected = CASES[case]
    ranks = max([len(pieces), *(one.ranks for one in meetings)])
    found = break_down(run_of(step_of(0, pieces, meetings), ranks=ranks))
    assert shares(found) == pytest.approx(expected)
    if len(pieces) < ranks:
        assert found.cannot


def test_who_causes_a_wait_is_named():
    pieces, meetings, _ = CASES["a wait is by what the last did longer"]
    first, last = break_down(run_of(step_of(0, pieces, meetings))).ranks
    assert (first.caused, first.waiting, first.compute) == (0.0, pytest.approx(6 / 9), pytest.approx(2 / 9))
    assert (last.caused, last.waiting, last.compute) == (6.0, 0.0, pytest.approx(5 / 9))
    pieces, meetings, _ = CASES["who waited itself passes its causes on"]
    found = break_down(run_of(step_of(0, pieces, meetings)))
    assert found.ranks[2].caused == pytest.approx(9.0)  # of which 4 as rank 1's wait
    assert [(late.rank, late.why) for late in found.late] == [(2, "loader")]


def test_padding_and_a_slow_device_s_seconds_beyond_the_usual_pace_are_their_own():
    """For equal kernels it takes twice as long: of 8 seconds 4 are work, and the quick rank's own work is 3."""
    padded = break_down(run_of(step_of(0, ["C6:0 T7"], ran=[PADDED])))
    assert shares(padded) == pytest.approx({"compute": 4.0, "padding": 2.0, "transfer": 1.0})
    step = step_of(0, ["C3 M8/0", "C8"], [met(3.0, 8.0)])
    found = break_down(run_of(step, alike={"gemm": {0: 1.0, 1: 2.0}}))
    assert [rank.pace for rank in found.ranks] == pytest.approx([1.0, 2.0])
    assert shares(found) == pytest.approx({"compute": 5.5, "lengths": 0.5, "device": 2.0})
    assert len(break_down(run_of(step)).cannot) > len(found.cannot)  # whether a rank is slow
    nothing = SeenRun("a test", 2, (0, 1), (RanStep(0, 3.0, ()), RanStep(1, 0.0, ())))
    assert shares(break_down(nothing)) == {"untold": 1.5}


def test_the_microbatch_that_most_of_a_wait_is_for_is_named_with_all_its_meetings():
    ran = [RanMicrobatch(1, m, s, lengths=(n,)) for m, (s, n) in enumerate([(1.0, 10), (5.0, 900), (1.0, 20)])]
    ran += [RanMicrobatch(0, m, 1.0, lengths=(10,)) for m in range(3)]
    late = "C1:0 C4:1 C6:1 C7:2"
    quick = "C1:0 C1.6:1 M4/0:1 C4.4:1 M6/1:1 C7:2"
    found = break_down(run_of(step_of(4, [quick, late], [met(1.6, 4.0), met(4.4, 6.0)], ran)))
    assert [(of.step, of.rank, of.microbatch, of.tokens) for of in found.late] == [(4, 1, 1, 900)]
    assert found.late[0].seconds == pytest.approx(4.0)
    end = step_of(4, ["C1:0 C2:1 C3:2 M7/0", late], [met(3.0, 7.0)], ran)
    alone = break_down(run_of(end, sync="on-demand"))
    assert [(of.rank, of.microbatch, of.tokens) for of in alone.late] == [(1, 1, 900)]
    even = [RanMicrobatch(1, m, 2.0, lengths=(100,)) for m in range(3)]  # none of which took most
    whole = break_down(run_of(step_of(0, ["C1 M6/0", "C2:0 C4:1 C6:2"], [met(1.0, 6.0)], even)))
    assert [(of.rank, of.microbatch, of.tokens) for of in whole.late] == [(1, -1, 300)]


def test_no_more_than_the_worst_microbatches_are_named_and_the_worst_first():
    steps = []
    for number in range(30):
        end = 2 + (7 * number) % 30
        ran = RanMicrobatch(1, 0, float(end), lengths=(number + 1,)), RanMicrobatch(0, 0, 1.0, lengths=(1,))
        steps.append(step_of(number, [f"C1:0 M{end}/0", f"C{end}:0"], [met(1.0, float(end))], ran))
    late = break_down(run_of(*steps)).late
    assert [round(of.seconds) for of in late] == [*range(30, 10, -1)]


def test_steps_that_begin_at_other_times_on_ranks_pass_their_causes_on():
    """Rank 1 is in its loader over the step's end on rank 0; who is done early is not late in the next for it; and who
    begins later than the one that waits for it is late by that."""
    begins = RanStep(0, 3.0, (), (track(0, "C2"), track(1, "C2 L3")))
    loads = RanStep(1, 4.0, (), (track(0, "C1 M4/0", 2.0), track(1, "L2 C3", 3.0)), (met(3.0, 6.0),))
    found = break_down(run_of(begins, loads))
    assert found.by_step["loader"] == pytest.approx([0.5, 1.0 + 1.5])
    assert found.by_step["edges"] == pytest.approx([0.0, 0.0])
    begins = [5.0 * n for n in range(6)]
    steps = [step_of(n, ["L3 C4 E5", "C1 M4/0 C5"], [met(t + 4.0, t + 1.0)], begin=t) for n, t in enumerate(begins)]
    assert shares(break_down(run_of(*steps))) == {"compute": 1.5, "loader": 3.0, "edges": 0.5}
    first = RanStep(0, 2.0, (), (track(0, "C2"), track(1, "C1 E2")))
    second = RanStep(1, 3.0, (), (track(0, "C1 M3/0", 2.0), track(1, "C1", 4.0)), (met(3.0, 5.0),))
    assert break_down(run_of(first, second)).by_step["edges"][1] == pytest.approx(1.0)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 2), min_size=3, max_size=3), st.integers(0, 2), st.sampled_from([-1e-6, 1e-6]))
def test_a_little_later_makes_a_little_difference(came, moved, jitter):
    """Ranks 1 and 2 hide behind their compute what rank 0 waits for."""

    def waited(*came):
        done = max(came) + 1.0
        pieces = (f"C{came[0]:.7f} M{done:.7f}/0 C9", "C9", f"C{came[2]:.7f} H{came[2] + 0.5:.7f} C9")
        return break_down(run_of(step_of(0, pieces, [met(*came, done=done)])))

    later = [max(at + jitter * (rank == moved), 0.0) for rank, at in enumerate(came)]
    assert waited(*came).share("transfer") == pytest.approx(waited(*later).share("transfer"), abs=1e-5)


def test_what_a_rank_did_in_a_step_that_no_file_shows_is_untold():
    def step(number, *seen):
        begin = 2.0 * number
        tracks = tuple(track(r, ("C1:0 M2/0", "C2:0")[r], begin) for r in seen)
        there = tuple(RanMicrobatch(r, 0, 1.0 + r, 2.0, (100 + 100 * r + number,)) for r in seen)
        came = {rank: begin + 1.0 + rank for rank in seen}
        return RanStep(number, 2.0, there, tracks, (Met("all-reduce", 0, 2, came, begin + 2.0),))

    whole = break_down(run_of(*(step(number, 0, 1) for number in range(6))))
    found = break_down(run_of(*(step(number, *[0, 1][: 1 + (number != 3)]) for number in range(6))))
    assert found.by_step["untold"][3] > 0
    assert len(found.cannot) == len(whole.cannot) + 1
