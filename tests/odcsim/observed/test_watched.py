"""What the watcher wrote becomes steps, also while the run goes on."""

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import ROOT
from watches import header, ran, step, wrote

from odcsim.errors import InputError
from odcsim.observed.run import Doing
from odcsim.observed.watched import read


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
