"""Operations of a pipeline become steps whose pieces sum to them, with the meetings of those who met."""

from pathlib import Path

import numpy as np
import pipelines
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import ROOT

from odcsim.decide.diagnosis.changes import changes
from odcsim.decide.diagnosis.parts import broken_down
from odcsim.errors import InputError
from odcsim.observed.operations import track_of
from odcsim.observed.run import NO, Doing
from odcsim.observed.stragglers import EXPECTED, read

pytest.importorskip("pyarrow")
REAL = ROOT.parent / "shared/traces/straggler-trace-SE.parquet"
TIMES = st.integers(0, 40).map(lambda n: n / 4)


@pytest.fixture
def run(tmp_path):
    return read(pipelines.write(tmp_path / "a.parquet", pipelines.made(uneven=0.5).rows()))


def sums(track):
    seconds = np.diff(track.edges)
    return {kind: float(seconds[track.kinds == kind].sum()) for kind in Doing}


@given(rows=st.lists(st.tuples(TIMES, TIMES, st.sampled_from(list(Doing)[:6])), max_size=8))
def test_pieces_partition_the_step_and_each_is_of_the_first_kind_that_goes_on(rows):
    begin, end = (np.array([f(row[:2]) for row in rows]) for f in (min, max))
    kinds = np.array([row[2] for row in rows], dtype=np.int64)
    track = track_of(3, begin, end, kinds, np.full(len(rows), NO), np.arange(len(rows)), (0.0, 10.0))
    assert (track.edges[0], track.edges[-1]) == (0.0, 10.0)
    assert (np.diff(track.edges) > 0).all()
    for kind, low, high in zip(track.kinds, track.edges, track.edges[1:], strict=False):
        going = kinds[(begin <= low) & (end >= high)]
        touched = [r for r in rows if min(r[:2]) < max(r[:2])]
        inside = touched and min(map(min, (r[:2] for r in touched))) <= low < max(max(r[:2]) for r in touched)
        assert kind == (going.min() if len(going) else Doing.HOST if inside else Doing.EDGE)


def test_every_rank_is_in_every_step_and_computes_as_long_as_was_written(run):
    laid = pipelines.made(uneven=0.5)
    assert len(run.steps) == 4
    for step in run.steps:
        assert {track.rank for track in step.tracks} == set(run.seen) == set(run.stages)
        for track in step.tracks:
            assert track.seconds == pytest.approx(step.seconds)
            replica, stage = run.replicas[track.rank], run.stages[track.rank]
            passes = (laid.forward + laid.backward)[step.number, replica, stage].sum()
            assert sums(track)[Doing.COMPUTE] == pytest.approx(passes + pipelines.UPDATE)
            ran = [m for m in step.microbatches if m.rank == track.rank]
            assert sum(m.seconds for m in ran) == pytest.approx(passes)
            assert [m.number for m in ran] == list(range(6))


def test_ranks_meet_those_of_their_stage_their_pipeline_and_all(run):
    for step in run.steps:
        groups = [set(met.came) for met in step.meetings]
        for stage in (0, 1):
            assert groups.count({rank for rank in run.seen if run.stages[rank] == stage}) == 2
        for replica in range(8):
            assert groups.count({rank for rank in run.seen if run.replicas[rank] == replica}) == 1
        assert groups.count(set(run.seen)) == 1
        for track in step.tracks:
            for piece in np.flatnonzero(track.meetings != NO):
                assert track.rank in step.meetings[track.meetings[piece]].came
                assert track.kinds[piece] == Doing.MEETING


def test_half_of_the_ranks_were_left_out_and_it_says_so(run):
    assert run.ranks == 2 * len(run.seen)
    assert "16 ranks that run the same microbatches as those that were seen" in run.lacks


def test_a_meeting_that_nobody_wrote_down_is_no_lateness_of_the_host(tmp_path):
    """As where a stage averages its losses: all of it go on at once."""
    laid = pipelines.made(uneven=0.5)
    last = {
        step: max(begin + seconds for _, stage, _, s, name, begin, seconds, *_ in laid.rows()
                  if stage == 1 and s == step and name == "backward-compute")
        for step in range(4)
    }  # fmt: skip
    rows = [
        (*row[:5], max(row[5], last[row[3]] + 0.001), *row[6:]) if row[1] and "grads" in row[4] else row
        for row in laid.rows()
    ]
    run = read(pipelines.write(tmp_path / "a.parquet", rows))
    stage = {rank for rank, s in run.stages.items() if s == 1}
    for step in run.steps:
        assert [set(met.came) for met in step.meetings].count(stage) == 3
        late = [sums(track)[Doing.HOST] for track in step.tracks if track.rank in stage]
        assert max(late) < 0.01


@pytest.mark.parametrize("stage", [0, 1])
def test_where_other_stages_were_not_seen_nothing_that_is_not_told_is_the_host_s(tmp_path, stage):
    rows = [row for row in pipelines.made(uneven=0.5).rows() if row[1] == stage]
    for seen in (rows, [row for row in rows if row[2] == rows[-1][2]]):
        run = read(pipelines.write(tmp_path / "a.parquet", seen))
        assert all(sums(track)[Doing.HOST] == 0 for step in run.steps for track in step.tracks)
        assert f"what ranks of other stages than {stage} did, whom these wait for" in run.lacks
        assert run.ranks > max(run.seen)
        found = broken_down(run)
        assert found.share("launch") == 0
        assert found.share("untold") > 0.01
        assert len(run.seen) > 1 or all(met.ranks > 1 for step in run.steps for met in step.meetings)
        assert changes(run, found, {}).ways == ()


@pytest.mark.parametrize(
    "missing",
    [
        lambda row: row[2] == 4,
        lambda row: row[2] == 4 and row[4] == "backward-compute" and row[8] == 3,
        lambda row: row[2] in (4, 20) and row[4] == "forward-compute" and row[8] == 3,
    ],
)
def test_steps_of_which_ranks_or_passes_are_missing_are_left_out(tmp_path, missing):
    every = pipelines.made().rows()
    run = read(pipelines.write(tmp_path / "a.parquet", [row for row in every if row[3] != 2 or not missing(row)]))
    assert [step.number for step in run.steps] == [0, 1, 3]
    assert "1 step of which ranks or passes are missing" in run.lacks
    rest = [row for row in every if not missing(row) or (row[3], row[2]) == (9, 4)]
    if len({row[2] for row in rest}) == len({row[2] for row in every}):
        with pytest.raises(InputError, match="no step of it has all ranks, with all passes"):
            read(pipelines.write(tmp_path / "a.parquet", rest))


def changed(rows, place, value):
    return [(*row[:place], value, *row[place + 1 :]) for row in rows[:1]] + rows[1:]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda rows: changed(rows, 6, -1.0), "duration is -1"),
        (lambda rows: changed(rows, 5, float("nan")), "start_ts is nan"),
        (lambda rows: changed(rows, 4, "dance"), "an operation is 'dance'"),
        (lambda rows: changed(rows, 1, 1), "rank 0 has two values of stage"),
        (lambda rows: [row for row in rows if row[4] != "forward-compute"], "holds no forward-compute"),
    ],
)
def test_rows_that_cannot_be_are_refused_in_a_line(tmp_path, wrong, line):
    path = pipelines.write(tmp_path / "a.parquet", wrong(pipelines.made(steps=1).rows()))
    with pytest.raises(InputError, match=line) as refused:
        read(path)
    assert str(path) in str(refused.value)


def test_other_parquet_and_a_file_that_is_cut_short_are_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"length": [1, 2]}), path)
    with pytest.raises(InputError, match="no column step and rank"):
        read(path)
    path.write_bytes(pipelines.write(path, pipelines.made(steps=1).rows()).read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        read(path)
    assert "dp_rank" in EXPECTED


@pytest.mark.skipif(not Path(REAL).exists(), reason="real traces lie beside the checkout")
def test_a_real_file_is_read_whole():
    run = read(REAL)
    assert (len(run.steps), len(run.seen), run.ranks) == (43, 64, 128)
    assert np.mean([step.seconds for step in run.steps]) == pytest.approx(9.113, abs=0.001)
    assert all(len(step.microbatches) == 512 for step in run.steps)
