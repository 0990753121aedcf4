"""Operations of a pipeline become steps whose pieces sum to them, with the meetings of those who met."""

from collections import Counter

import numpy as np
import pipelines
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import ROOT

from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.decide.diagnosis.changes import changes
from odcsim.errors import InputError
from odcsim.observed.run import NO, Doing, track_of
from odcsim.observed.stragglers import read

pa, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
REAL = ROOT.parent / "shared/traces/straggler-trace-SE.parquet"
TIMES = st.integers(0, 40).map(lambda n: n / 4)
LAID = pipelines.made(uneven=0.5)


def read_of(folder, rows):
    return read(pipelines.write(folder / "a.parquet", rows))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_of(tmp_path_factory.mktemp("run"), LAID.rows())


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


def test_every_rank_is_in_every_step_computes_as_long_as_was_written_and_meets_its_groups(run):
    """Those of its stage, its pipeline and all."""
    assert len(run.steps) == 4
    assert run.ranks == 2 * len(run.seen)  # half of them were left out
    assert len(run.lacks) == 3
    for step in run.steps:
        assert {track.rank for track in step.tracks} == set(run.seen) == set(run.stages)
        for track in step.tracks:
            assert track.seconds == pytest.approx(step.seconds)
            replica, stage = run.replicas[track.rank], run.stages[track.rank]
            passes = (LAID.forward + LAID.backward)[step.number, replica, stage].sum()
            assert sums(track)[Doing.COMPUTE] == pytest.approx(passes + pipelines.UPDATE)
            ran = [m for m in step.microbatches if m.rank == track.rank]
            assert sum(m.seconds for m in ran) == pytest.approx(passes)
            assert [m.number for m in ran] == list(range(6))
            for piece in np.flatnonzero(track.meetings != NO):
                assert track.rank in step.meetings[track.meetings[piece]].came
                assert track.kinds[piece] == Doing.MEETING
        groups = Counter(frozenset(met.came) for met in step.meetings)
        stages = [frozenset(rank for rank in run.seen if run.stages[rank] == stage) for stage in (0, 1)]
        pipes = [frozenset(rank for rank in run.seen if run.replicas[rank] == replica) for replica in range(8)]
        assert groups == dict.fromkeys(stages, 2) | dict.fromkeys(pipes, 1) | {frozenset(run.seen): 1}


def test_a_meeting_that_nobody_wrote_down_is_no_lateness_of_the_host(tmp_path):
    """As where a stage averages its losses: all of it go on at once."""
    last = [max(begin + seconds for _, stage, _, s, name, begin, seconds, *_ in LAID.rows()
                if (stage, s, name) == (1, step, "backward-compute")) for step in range(4)]  # fmt: skip
    rows = [
        (*row[:5], max(row[5], last[row[3]] + 0.001), *row[6:]) if row[1] and "grads" in row[4] else row
        for row in LAID.rows()
    ]
    run = read_of(tmp_path, rows)
    stage = {rank for rank, s in run.stages.items() if s == 1}
    for step in run.steps:
        assert [set(met.came) for met in step.meetings].count(stage) == 3
        assert max(sums(track)[Doing.HOST] for track in step.tracks if track.rank in stage) < 0.01


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("whole", [True, False])
def test_where_other_stages_were_not_seen_nothing_that_is_not_told_is_the_host_s(tmp_path, stage, whole):
    rows = [row for row in LAID.rows() if row[1] == stage]
    run = read_of(tmp_path, [row for row in rows if whole or row[2] == rows[-1][2]])
    assert all(sums(track)[Doing.HOST] == 0 for step in run.steps for track in step.tracks)
    assert run.ranks > max(run.seen)
    assert len(run.lacks) == 3 + whole
    found = break_down(run)
    assert found.share("launch") == 0
    assert found.share("untold") > 0.01
    assert whole or all(met.ranks > 1 for step in run.steps for met in step.meetings)
    assert changes(run, found, {}).ways == ()


MISSING = [
    lambda row: row[2] == 4,
    lambda row: row[2] == 4 and row[4] == "backward-compute" and row[8] == 3,
    lambda row: row[2] in (4, 20) and row[4] == "forward-compute" and row[8] == 3,
]


@pytest.mark.parametrize("missing", MISSING)
def test_steps_of_which_ranks_or_passes_are_missing_are_left_out(tmp_path, missing):
    every = pipelines.made().rows()
    run = read_of(tmp_path, [row for row in every if row[3] != 2 or not missing(row)])
    assert [step.number for step in run.steps] == [0, 1, 3]
    assert len(run.lacks) == 4
    rest = [row for row in every if not missing(row)]
    if len({row[2] for row in rest}) == len({row[2] for row in every}):
        with pytest.raises(InputError):
            read_of(tmp_path, rest)


def test_rows_that_cannot_be_other_parquet_and_a_file_that_is_cut_short_are_refused(tmp_path):
    rows = pipelines.made(steps=1).rows()
    path = pipelines.write(tmp_path / "whole.parquet", rows)
    path.write_bytes(path.read_bytes()[:-20])
    parquet.write_table(pa.table({"length": [1, 2]}), tmp_path / "other.parquet")
    values = [(6, -1.0), (5, float("nan")), (4, "dance"), (1, 1)]
    wrong = [[(*rows[0][:place], value, *rows[0][place + 1 :]), *rows[1:]] for place, value in values]
    wrong.append([row for row in rows if row[4] != "forward-compute"])
    for number, of in enumerate(wrong):
        pipelines.write(tmp_path / f"{number}.parquet", of)
    for path in tmp_path.iterdir():
        with pytest.raises(InputError) as refused:
            read(path)
        assert str(path) in str(refused.value)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="real traces lie beside the checkout")
def test_a_real_file_is_read_whole():
    run = read(REAL)
    assert (len(run.steps), len(run.seen), run.ranks) == (43, 64, 128)
    assert np.mean([step.seconds for step in run.steps]) == pytest.approx(9.113, abs=0.001)
    assert all(len(step.microbatches) == 512 for step in run.steps)
