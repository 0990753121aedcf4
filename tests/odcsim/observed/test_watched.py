"""What the watcher wrote becomes steps, also while the run goes on; lengths beside a run find their microbatches."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import ROOT
from watches import header, ran, step, wrote

from odcsim.errors import InputError
from odcsim.observed.run import Doing, RanMicrobatch, RanStep, SeenRun
from odcsim.observed.run_files import LACKED, UNSURE, of_table, of_watched, with_lengths
from odcsim.observed.watch_files import read, read_ranks


def sums(track):
    seconds = np.diff(track.edges)
    return {kind: float(seconds[track.kinds == kind].sum()) for kind in Doing}


LATE = st.floats(0, 1000).map(lambda n: round(n, 3))


@given(late=LATE, loader=st.floats(0, 0.5), collector=st.floats(0, 0.25))
def test_pieces_sum_to_the_step_and_to_what_was_told_whatever_the_clocks_say(late, loader, collector, tmp_path_factory):
    told = {"loader": loader, "collector": collector}
    ranks = [
        [step(n, [ran(0.75, 1.0, [300]), ran(2.0, 1.0, [200])], **told) for n in range(3)],
        [step(n, [ran(0.75, 1.0, [100], 0.5), ran(2.0, 1.0, [50], 0.75)], late, **told) for n in range(3)],
    ]
    run = read(wrote(tmp_path_factory.mktemp("run"), ranks))
    assert run.seen == (0, 1)
    for each in run.steps:
        for track, waited in zip(each.tracks, (0, 1.25), strict=True):
            found = sums(track)
            assert track.seconds == pytest.approx(each.seconds, abs=1e-5)
            assert found[Doing.COMPUTE] == pytest.approx(2.0 - waited, abs=1e-5)
            assert found[Doing.MEETING] == pytest.approx(waited, abs=1e-5)
            assert found[Doing.LOADER] == pytest.approx(loader, abs=1e-5)
            assert found[Doing.COLLECTOR] == pytest.approx(collector, abs=1e-5)
        for met in each.meetings:
            assert met.done == pytest.approx(max(met.came.values()), abs=1e-5)
            assert met.came[0] > met.came[1]


def test_microbatches_have_their_lengths_and_seconds_and_where_waiting_is_not_told_it_is_not_made_up(tmp_path):
    run = read(wrote(tmp_path, [[step(7, [ran(0, 1.5, [512, 1024], 0.5, computed=2048)])]]))
    (one,) = run.steps[0].microbatches
    assert (one.lengths, one.computed, one.seconds, one.wall) == ((512, 1024), 2048, 1.0, 1.5)
    assert (run.rests, run.trainer, run.lacks) == ("lengths", "trl", ())
    run = read(wrote(tmp_path, [[step(0, [ran(0, 1.5, [5], None)])]]))
    (one,) = run.steps[0].microbatches
    assert (one.seconds, one.wall, run.steps[0].meetings, len(run.lacks)) == (0.0, 1.5, (), 1)
    assert sums(run.steps[0].tracks[0])[Doing.COMPUTE] == 0


@pytest.mark.parametrize("waited", [0.5, None])
def test_what_lies_outside_microbatches_is_the_watchers_own_and_no_launch_is_late(tmp_path, waited):
    """Texts are generated before the first, and something fails between the two."""
    rows = [[step(n, [ran(20, 2, [5], waited), ran(25, 2, [5], waited)], seconds=30.0) for n in range(2)]]
    for each in read(wrote(tmp_path, rows)).steps:
        for track in each.tracks:
            found = sums(track)
            assert (found[Doing.HOST], found[Doing.EDGE]) == (0, pytest.approx(26, abs=1e-5))


@given(kept=st.integers(1, 12), rank=st.integers(0, 2), cut=st.booleans())
def test_steps_that_not_all_ranks_have_ended_are_left_out_and_counted(kept, rank, cut, tmp_path_factory):
    """A run that goes on ends in the middle of a line."""
    rows = [step(n, [ran(0, 1, [5])]) for n in range(12)]
    paths = wrote(tmp_path_factory.mktemp("run"), [rows[:kept] if r == rank else rows for r in range(3)])
    if cut:
        paths[rank].write_text(paths[rank].read_text() + json.dumps(rows[0])[:40])
    run = read(paths)
    assert [s.number for s in run.steps] == list(range(kept))
    lost = 12 - kept
    assert [lack.split()[0] for lack in run.lacks] == [f"{lost}"] * (lost > 0)


def test_a_step_that_is_written_again_counts_once_and_it_is_known_whose_files_are_missing(tmp_path):
    """Of a run that went on from a checkpoint."""
    run = read(wrote(tmp_path, [[step(0, [ran(0, 1, [5])]), step(0, [ran(0, 2, [9])])]]))
    assert [m.lengths for s in run.steps for m in s.microbatches] == [(9,)]
    found = read([wrote(tmp_path, [[step(0, [ran(0, 1, [5])])] for _ in range(3)])[2]])
    assert (found.seen, found.ranks, len(found.lacks)) == ((2,), 3, 1)


WRONG = [
    lambda head, _: head.update(version=2),
    lambda head, _: head.update(rank=5),
    lambda _, row: row.update(seconds="3"),
    lambda _, row: row["microbatches"][0].update(lengths=[0]),
    lambda _, row: row.pop("microbatches"),
]


def test_values_that_cannot_be_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    for change in (*WRONG, None):
        head, row = header(0, 1), step(0, [ran(0, 1, [5])])
        if change is not None:
            change(head, row)
        spoilt = "" if change else "{"  # a line that is no JSON, before the last
        path.write_text(f"{json.dumps(head)}\n{spoilt}{json.dumps(row)}\n\n")
        with pytest.raises(InputError) as refused:
            read([path])
        assert str(refused.value).startswith(str(path))


def test_files_of_two_runs_or_of_one_rank_twice_are_refused(tmp_path):
    rows = [[step(n, [ran(0, 1, [5])], late=day * 86400.0) for n in range(2)] for day in (0, 1)]
    for name in "abcd":
        (tmp_path / name).mkdir()
    first, second = wrote(tmp_path / "a", [rows[0], rows[0]])
    (other,) = wrote(tmp_path / "b", rows[:1])
    days, unlike = wrote(tmp_path / "c", rows), wrote(tmp_path / "d", [rows[0], rows[0]])
    for name, path in zip(("one", "another"), unlike, strict=True):
        path.write_text(path.read_text().replace('"format"', f'"run": "{name}", "format"'))
    assert read([first, second]).seen == (0, 1)
    for paths in ([first, other], [second, other], days, unlike):
        with pytest.raises(InputError):
            read(paths)


@pytest.mark.parametrize("waited", [0.0, None])
def test_where_gradients_meet_behind_the_last_microbatch_ranks_wait_there(tmp_path, waited):
    """As under DDP: who has less is done earlier, and what follows the slowest is the step's end."""

    def last(n, rank):
        return (1.0, 2.0)[(n + rank) % 2]

    rows = [[], []]
    for n, r in product(range(4), (0, 1)):
        own = last(n, r)
        rows[r].append(step(n, [ran(0, 1, [9], waited), ran(1, own, [int(9 * own)], waited)], seconds=3.5))
    run = read(wrote(tmp_path, rows))
    assert not run.lacks
    for number, each in enumerate(run.steps):
        for track in each.tracks:
            own, kinds = last(number, track.rank), (Doing.COMPUTE, Doing.MEETING, Doing.EDGE)
            assert [sums(track)[kind] for kind in kinds] == pytest.approx([1 + own, 2 - own, 0.5], abs=1e-5)
            waits = np.flatnonzero((track.kinds == Doing.MEETING) & (np.diff(track.edges) > 0.1))
            assert len(waits) == (own < 2)
            for place in waits:
                assert each.meetings[track.meetings[place]].done == pytest.approx(track.edges[place + 1])
        assert each.meetings[-1].came == pytest.approx({r: 1 + last(number, r) for r in (0, 1)}, abs=1e-5)


def test_ranks_that_wait_inside_microbatches_do_not_meet_behind_them_alone():
    """Where each is as long as the longest of all says, though ranks run ahead by a layer and so end apart."""
    run = read(sorted((ROOT / "traces" / "slow-step").glob("watch-rank*.jsonl")))
    assert run.lacks
    assert not any(step.meetings for step in run.steps)


# Lengths from a file beside a run's go to its microbatches by rank, step and number, or are refused.


def seen(ranks=(0, 1), microbatches=2):
    ran = tuple(RanMicrobatch(rank, i, 1.0) for rank in ranks for i in reversed(range(microbatches)))
    return SeenRun("made", max(ranks) + 1, tuple(ranks), (RanStep(3, 2.0, ran),), rests="seconds", lacks=(*LACKED, "x"))


def table(folder, rows, names="device,step,lengths"):
    path = folder / "lengths.csv"
    path.write_text("\n".join([names, *rows]) + "\n")
    return path


def found(run):
    return {(m.rank, m.number): m.lengths for step in run.steps for m in step.microbatches}


def test_rows_go_to_microbatches_in_their_order(tmp_path):
    path = table(tmp_path, ["1,3,7", "0,3,5;6", "0,3,9", "1,3,8", "0,4,1"])
    known = with_lengths(seen(), of_table(path, False), str(path))
    assert found(known) == {(0, 0): (5, 6), (0, 1): (9,), (1, 0): (7,), (1, 1): (8,)}
    assert (known.rests, known.lacks) == ("lengths", ("x", UNSURE))
    assert [m.seconds for m in known.steps[0].microbatches] == [1.0] * 4
    path = table(tmp_path, ["3,5", "3,6"], "step,lengths")  # a lone rank needs no device
    assert found(with_lengths(seen((5,)), of_table(path, True), str(path))) == {(5, 0): (5,), (5, 1): (6,)}


def test_microbatches_that_no_trace_told_apart_come_from_the_lengths_and_counts_must_agree(tmp_path):
    path = table(tmp_path, ["0,3,5", "0,3,6"])
    bare = seen((0,))
    bare = replace(bare, steps=(replace(bare.steps[0], microbatches=()),))
    assert found(with_lengths(bare, of_table(path, True), str(path))) == {(0, 0): (5,), (0, 1): (6,)}
    two = ["0,3,5", "0,3,6"]
    for rows in ([*two, "1,3,7"], two, ["0,2,5", "0,2,6", "1,2,7", "1,2,8"]):
        path = table(tmp_path, rows)
        with pytest.raises(InputError):
            with_lengths(seen(), of_table(path, False), str(path))


def test_what_the_watcher_saw_has_padding_too(tmp_path):
    rows = [step(3, [ran(0, 1, [5], computed=8), ran(1, 1, [6, 2], computed=16)])]
    known = with_lengths(seen(), of_watched(read_ranks(wrote(tmp_path, [rows, rows]))), "here")
    assert found(known)[1, 1] == (6, 2)
    assert [m.computed for m in known.steps[0].microbatches] == [8, 16, 8, 16]


# The samples of each of a rank's two microbatches, in each step.
STEPS = st.lists(st.lists(st.lists(st.integers(2, 500), min_size=1, max_size=3), min_size=2, max_size=2), min_size=2)


def that_ran(steps, padding=0, shifted=False):
    """A run whose tokens are known; `shifted`: a sample's last token is a label alone."""
    ran = []
    for number, microbatches in enumerate(steps):
        tokens = [sum(held) + padding - shifted * len(held) for held in microbatches]
        ran.append(RanStep(number, 1.0, tuple(RanMicrobatch(0, i, 1.0, tokens=each) for i, each in enumerate(tokens))))
    return SeenRun("made", 1, (0,), tuple(ran), rests="tokens")


def held_in(steps):
    return {(0, n): [(tuple(held), sum(held)) for held in microbatches] for n, microbatches in enumerate(steps)}


@given(STEPS, st.integers(0, 64), st.booleans())
def test_lengths_of_the_same_steps_are_taken_whatever_the_padding(steps, padding, shifted):
    known = with_lengths(that_ran(steps, padding, shifted), held_in(steps), "here")
    assert [[list(m.lengths) for m in step.microbatches] for step in known.steps] == steps
    assert UNSURE not in known.lacks


@given(STEPS, st.sampled_from([1, -1]))
def test_those_of_the_step_before_or_after_are_refused_where_tokens_tell(steps, off):
    """A watcher counts from 1 and a profiler from 0. Where the lengths hold no more than ran, it may be padding."""
    other = steps[off:] + steps[:off]
    pairs = [pair for two in zip(other, steps, strict=True) for pair in zip(*two, strict=True)]
    if all(sum(given) - len(given) <= sum(ran) for given, ran in pairs):
        with_lengths(that_ran(steps), held_in(other), "here")
        return
    with pytest.raises(InputError):
        with_lengths(that_ran(steps), held_in(other), "here")
