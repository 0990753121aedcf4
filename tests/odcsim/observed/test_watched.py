"""What the watcher wrote becomes steps, also while the run goes on."""

import json

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


def test_microbatches_have_their_lengths_and_seconds(tmp_path):
    run = read(wrote(tmp_path, [[step(7, [ran(0, 1.5, [512, 1024], 0.5, computed=2048)])]]))
    (one,) = run.steps[0].microbatches
    assert (one.lengths, one.computed, one.seconds, one.wall) == ((512, 1024), 2048, 1.0, 1.5)
    assert (run.rests, run.trainer, run.lacks) == ("lengths", "trl", ())


def test_where_waiting_is_not_told_it_is_not_made_up(tmp_path):
    run = read(wrote(tmp_path, [[step(0, [ran(0, 1.5, [5], None)])]]))
    (one,) = run.steps[0].microbatches
    assert (one.seconds, one.wall, run.steps[0].meetings) == (0.0, 1.5, ())
    assert sums(run.steps[0].tracks[0])[Doing.COMPUTE] == 0
    assert "compute apart from waiting: both are inferred from lengths alone" in run.lacks


@pytest.mark.parametrize("waited", [0.5, None])
def test_what_lies_outside_microbatches_is_the_watchers_own_and_no_launch_is_late(tmp_path, waited):
    """Texts are generated before the first, and something fails between the two."""
    rows = [[step(n, [ran(20, 2, [5], waited), ran(25, 2, [5], waited)], seconds=30.0) for n in range(2)]]
    for each in read(wrote(tmp_path, rows)).steps:
        for track in each.tracks:
            found = sums(track)
            assert (found[Doing.HOST], found[Doing.EDGE]) == (0, pytest.approx(26, abs=1e-5))


def test_a_run_that_goes_on_has_the_steps_that_all_ranks_have_ended(tmp_path):
    rows = [step(n, [ran(0, 1, [5])]) for n in range(4)]
    paths = wrote(tmp_path, [rows, rows[:3]])
    paths[1].write_text(paths[1].read_text() + json.dumps(rows[3])[:40])
    run = read(paths)
    assert [s.number for s in run.steps] == [0, 1, 2]
    assert run.lacks == ("1 step that not all ranks have written, left out",)


@given(kept=st.integers(1, 11), rank=st.integers(0, 2))
def test_steps_that_a_file_lost_are_counted(kept, rank, tmp_path_factory):
    rows = [step(n, [ran(0, 1, [5])]) for n in range(12)]
    run = read(wrote(tmp_path_factory.mktemp("run"), [rows[:kept] if r == rank else rows for r in range(3)]))
    assert len(run.steps) == kept
    lost = 12 - kept
    assert run.lacks == (f"{lost} step{'s' * (lost > 1)} that not all ranks have written, left out",)


def test_a_broken_line_before_the_last_is_named(tmp_path):
    (path,) = wrote(tmp_path, [[step(0, [ran(0, 1, [5])])]])
    path.write_text(path.read_text().replace('"step"', "step") + json.dumps(step(1, [])) + "\n")
    with pytest.raises(InputError, match=r"watch-rank0.jsonl:2: is not JSON"):
        read([path])


def test_a_step_that_is_written_again_counts_once(tmp_path):
    """Of a run that went on from a checkpoint."""
    rows = [step(0, [ran(0, 1, [5])]), step(0, [ran(0, 2, [9])])]
    run = read(wrote(tmp_path, [rows]))
    assert [m.lengths for s in run.steps for m in s.microbatches] == [(9,)]


def test_it_says_whose_files_are_missing(tmp_path):
    paths = wrote(tmp_path, [[step(0, [ran(0, 1, [5])])] for _ in range(3)])
    assert read([paths[2]]).lacks == ("files of ranks 0, 1",)
    assert (read([paths[2]]).seen, read([paths[2]]).ranks) == ((2,), 3)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda head, _: head.update(version=2), "version 1"),
        (lambda head, _: head.update(rank=5), "rank is 5"),
        (lambda _, row: row.update(seconds="3"), "seconds is '3'"),
        (lambda _, row: row["microbatches"][0].update(lengths=[0]), r"microbatches\[0\].lengths\[0\] is 0"),
        (lambda _, row: row.pop("microbatches"), "microbatches is None"),
    ],
)
def test_values_that_cannot_be_are_refused_with_their_place(tmp_path, change, line):
    head, row = header(0, 1), step(0, [ran(0, 1, [5])])
    change(head, row)
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(head)}\n{json.dumps(row)}\n\n")
    with pytest.raises(InputError, match=line):
        read([path])


def test_files_of_two_runs_or_of_one_rank_twice_are_refused(tmp_path):
    rows = [[step(0, [ran(0, 1, [5])])]] * 2
    (tmp_path / "other").mkdir()
    first, second = wrote(tmp_path, rows)
    (other,) = wrote(tmp_path / "other", rows[:1])
    with pytest.raises(InputError, match="rank 0 a second time"):
        read([first, other])
    with pytest.raises(InputError, match="is of a run of 1 ranks"):
        read([second, other])


def test_ranks_whose_files_name_unlike_runs_or_that_ran_days_apart_are_refused(tmp_path):
    rows = [[step(n, [ran(0, 1, [5])], late=day * 86400.0) for n in range(2)] for day in (0, 1)]
    with pytest.raises(InputError, match="no step that ranks ran at one time"):
        read(wrote(tmp_path, rows))
    paths = wrote(tmp_path, [rows[0], rows[0]])
    for name, path in zip(("one", "another"), paths, strict=True):
        path.write_text(path.read_text().replace('"format"', f'"run": "{name}", "format"'))
    with pytest.raises(InputError, match=r"rank1.jsonl: is of another run than .*rank0.jsonl"):
        read(paths)


@pytest.mark.parametrize("waited", [0.0, None])
def test_where_gradients_meet_behind_the_last_microbatch_ranks_wait_there(tmp_path, waited):
    """As under DDP: who has less is done earlier, and what follows the slowest is the step's end."""
    rows = [[step(n, [ran(0, 1, [9], waited), ran(1, long, [int(9 * long)], waited)], seconds=3.5)
             for n, long in enumerate([(1.0, 2.0)[(n + r) % 2] for n in range(4)])] for r in range(2)]  # fmt: skip
    run = read(wrote(tmp_path, rows))
    assert not run.lacks
    for number, each in enumerate(run.steps):
        for track in each.tracks:
            own = (1.0, 2.0)[(number + track.rank) % 2]
            kinds = (Doing.COMPUTE, Doing.MEETING, Doing.EDGE)
            assert [sums(track)[kind] for kind in kinds] == pytest.approx([1 + own, 2 - own, 0.5], abs=1e-5)
            (place,) = (
                np.flatnonzero((track.kinds == Doing.MEETING) & (np.diff(track.edges) > 0.1)) if own < 2 else (0,)
            )
            assert own == 2 or each.meetings[track.meetings[place]].done == pytest.approx(track.edges[place + 1])
        assert each.meetings[-1].came == pytest.approx({r: 2 + (number + r) % 2 for r in range(2)}, abs=1e-5)


def test_ranks_that_wait_inside_microbatches_do_not_meet_behind_them_alone():
    """Where each is as long as the longest of all says, though ranks run ahead by a layer and so end apart."""
    run = read(sorted((ROOT / "traces" / "slow-step").glob("watch-rank*.jsonl")))
    assert "compute apart from waiting: both are inferred from lengths alone" in run.lacks
    assert not any(step.meetings for step in run.steps)
