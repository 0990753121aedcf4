"""A pipeline's step is replayed from its operations, and what it waits for is named by its cause."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import ROOT

from odcsim import InputError
from odcsim.decide.diagnosis import pipeline_changes, pipeline_grid
from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.decide.diagnosis.changes import changes
from odcsim.decide.diagnosis.outcome import PARTS
from odcsim.decide.diagnosis.pipeline_causes import causes_of
from odcsim.decide.diagnosis.pipeline_grid import grid_of
from odcsim.observed.stragglers import read

pytest.importorskip("pyarrow")
REAL = ROOT.parent / "shared/traces/straggler-trace-SE.parquet"
CAUSES = ("lengths", "device", "stages", "loader", "collector", "launch", "untold")
LAYERS = "layers moved until all stages take as long"
DEALT = "the same microbatches reassigned to data-parallel ranks, by their seconds"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipelines") / "a.parquet"
    return lambda laid: read(pipelines.write(path, laid.rows()))


def shares(run):
    return {part.name: part.share for part in break_down(run).parts}


def named(run, least=0.03):
    found = shares(run)
    return {name for name in CAUSES if found[name] >= least}


LAID = st.builds(
    pipelines.made,
    st.integers(0, 100),
    uneven=st.sampled_from([0.0, 0.2, 0.6]),
    slow=st.sampled_from([None, ((3, 1), 1.3), ((0, 0), 1.5)]),
    stages=st.sampled_from([(1.0, 1.0), (1.0, 1.4), (1.0, 1.2, 0.8), (1.0, 1.0, 1.0, 1.0)]),
    noise=st.sampled_from([0.0, 0.05]),
    late=st.sampled_from([0.0, 0.004]),
    steps=st.integers(1, 3),
    microbatches=st.integers(1, 6),
)


@settings(max_examples=25)
@given(laid=LAID)
def test_replayed_from_its_passes_a_step_takes_as_long_as_it_did_and_parts_sum_to_it(seen, laid):
    run = seen(laid)
    grid = grid_of(run)
    np.testing.assert_allclose(grid.replay(grid.seconds), grid.measured, rtol=1e-9)
    found = break_down(run)
    np.testing.assert_allclose(sum(found.by_step[name] for name in PARTS), grid.measured, rtol=1e-9)
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    causes = causes_of(grid)
    np.testing.assert_allclose(causes.seconds(lengths=True, device=True, stages=True, rest=True), grid.seconds)


@pytest.mark.parametrize(("injected", "causes"), [
    ({}, ""),
    ({"uneven": 0.4}, "lengths"),
    ({"slow": ((3, 1), 1.3)}, "device"),
    ({"slow": ((5, 0), 1.3)}, "device"),
    ({"stages": (1.0, 1.5)}, "stages"),
    ({"stages": (1.0, 1.0, 1.5)}, "stages"),
    ({"late": 0.03}, "launch"),
    ({"uneven": 0.4, "stages": (1.0, 1.8)}, "lengths stages"),
    ({"uneven": 0.3, "slow": ((3, 1), 1.5), "stages": (1.0, 1.5)}, "lengths device stages"),
    ({"uneven": 0.3, "noise": 0.02}, "lengths"),
    ({"noise": 0.3}, "untold"),
])  # fmt: skip
def test_what_was_injected_is_named_and_nothing_else(seen, injected, causes):
    assert named(seen(pipelines.made(steps=6, **injected))) == set(causes.split())


@pytest.mark.parametrize(("place", "pace", "laid"), [
    ((3, 0), 1.3, {"steps": 6, "uneven": 0.3}),
    ((3, 1), 1.3, {"steps": 6, "uneven": 0.3}),
    ((7, 1), 1.2, {"steps": 4, "uneven": 0.6, "replicas": 40}),  # which is last in few steps
])  # fmt: skip
def test_a_slow_device_is_named_with_its_rank_beside_uneven_lengths(seen, place, pace, laid):
    laid = pipelines.made(slow=(place, pace), **laid)
    found, slow = break_down(seen(laid)), laid.rank(*place)
    paces = {one.rank: one.pace for one in found.ranks}
    assert paces.pop(slow) == pytest.approx(pace, abs=0.04)
    assert set(paces.values()) == {1.0}
    assert found.share("device") > 0.005
    assert next(one for one in found.ranks if one.rank == slow).caused > 0
    assert {(one.rank, one.microbatch) for one in found.late if one.why == "device"} <= {(slow, -1)}


def test_an_even_pipeline_waits_but_to_fill_and_drain_and_has_nothing_to_gain(seen):
    run = seen(pipelines.made(stages=(1.0, 1.0, 1.0)))
    found, step = shares(run), break_down(run).seconds
    assert found["bubble"] * step == pytest.approx(2 * 0.3, rel=0.15)  # of each of two stages a forward and a backward
    assert found["compute"] * step == pytest.approx(6 * 0.3 + pipelines.UPDATE)
    gains = changes(seen(pipelines.made()), break_down(seen(pipelines.made())), {"price": 2.5})
    assert (gains.ways, gains.cannot, gains.replayed) == ((), (), pytest.approx(1))


def test_what_cannot_be_told_names_nobody_and_the_microbatch_that_others_waited_for_is_named(seen):
    """Longer samples of one data-parallel rank are as a slow device is; and one step has no interval."""
    laid = pipelines.made(steps=6, uneven=0.1)
    for passes in (laid.forward, laid.backward):
        passes[:, 2] *= 1.4
    found = break_down(seen(laid))
    assert any(f"{laid.rank(2, 0)}, {laid.rank(2, 1)}" in text for text in found.cannot)
    assert {one.pace for one in found.ranks} == {1.0}
    one = break_down(seen(pipelines.made(steps=1, uneven=0.4)))
    assert all(part.low == pytest.approx(part.share) == part.high for part in one.parts)
    assert one.cannot
    laid = pipelines.made(steps=3)
    for passes in (laid.forward, laid.backward):
        passes[1, 4, :, 2] *= 6
    worst = break_down(seen(laid)).late[0]
    assert (worst.step, worst.microbatch, worst.why) == (1, 2, "lengths")
    assert worst.rank in (laid.rank(4, 0), laid.rank(4, 1))
    assert worst.seconds > 10


def relaid(run, laid, seconds):
    """Seconds of the steps, laid out anew with these of passes."""
    grid = grid_of(run)
    forward, backward = np.zeros((2, *laid.shape))
    forward[grid.steps, grid.replicas, :, grid.numbers] = seconds[:, :, 0]
    backward[grid.steps, grid.replicas, :, grid.numbers] = seconds[:, :, 1]
    return pipelines.Laid(forward, backward, laid.late)


@pytest.mark.parametrize("stages", [(1.0, 1.5), (0.8, 1.5, 0.8)])
def test_what_a_change_promises_is_what_a_run_with_it_takes(seen, stages):
    laid = pipelines.made(steps=5, uneven=0.4, slow=((1, 1), 1.2), stages=stages)
    run = seen(laid)
    found, causes = break_down(run), causes_of(grid_of(run))
    ways = {one.way: one for one in changes(run, found, {}).ways}
    tried = {
        LAYERS: pipeline_changes.level_stages(causes, causes.grid.seconds),
        DEALT: pipeline_changes.deal_again(causes),
    }
    for way, seconds in tried.items():
        took = np.mean([step.seconds for step in seen(relaid(run, laid, seconds)).steps])
        assert ways[way].seconds == pytest.approx(took, rel=1e-6)
        assert ways[way].low < ways[way].gain < ways[way].high
        assert ways[way].gain == pytest.approx(found.seconds / took, rel=1e-6)


def test_microbatches_dealt_anew_are_the_same_ones(seen):
    run = seen(pipelines.made(steps=3, uneven=0.4))
    causes = causes_of(grid_of(run))
    dealt, grid = pipeline_changes.deal_again(causes), causes.grid
    for step in range(3):
        before, after = (np.sort(each[grid.steps == step], axis=0) for each in (grid.seconds, dealt))
        np.testing.assert_allclose(before, after)
    best = changes(run, break_down(run), {"price": 2.5}).ways[-1]
    assert best.gain > 1.05
    assert best.dollars_a_day == pytest.approx(run.ranks * 24 * 2.5 * (1 - 1 / best.gain))
    with pytest.raises(InputError):
        changes(run, break_down(run), {"trainer": "trl"})


@given(stages=st.integers(1, 5), chunks=st.integers(1, 3))
def test_from_the_last_backward_givers_lead_through_all_chunks_to_the_first_forward(stages, chunks):
    at, path = (0, 2 * chunks - 1), []
    while at is not None:
        path.append(at)
        last = at == (stages - 1, chunks)  # which takes what its own forward left
        at = (stages - 1, chunks - 1) if last else pipeline_grid._giver(*at, stages, 2 * chunks)
    assert len(set(path)) == len(path) == 2 * stages * chunks
    assert path[-1] == (0, 0)


def test_stages_that_are_missing_or_run_other_passes_are_refused(seen):
    rows = [row for row in pipelines.made(steps=1, stages=(1.0, 1.0, 1.0)).rows() if row[1] != 1]
    run = seen(pipelines.made(steps=1))
    other = {**{m: m for m in range(6)}, 5: 7}
    *tracks, last = run.steps[0].tracks
    odd = replace(last, microbatches=np.vectorize(other.get)(last.microbatches, last.microbatches))
    unlike = replace(run, steps=(replace(run.steps[0], tracks=(*tracks, odd)),))
    for wrong in (seen(SimpleNamespace(rows=lambda: rows)), unlike):
        with pytest.raises(InputError):
            break_down(wrong)


@pytest.fixture(scope="module")
def real():
    return read(REAL) if REAL.exists() else pytest.skip("real traces lie beside the checkout")


def test_a_real_job_is_replayed_as_its_own_analysis_has_it(real):
    """What it would take with all operations alike is in straggler-result-SE.json: 5.897 s of 9.067."""
    grid = grid_of(real)
    assert grid.replay(grid.seconds).sum() == pytest.approx(grid.measured.sum(), rel=1e-3)
    causes = causes_of(grid)
    even = causes.seconds(lengths=False, device=False, stages=False, rest=False)
    assert float(grid.replay(even).mean()) == pytest.approx(6.04, abs=0.02)
    assert sum(break_down(real).by_step["bubble"]) / len(grid.measured) == pytest.approx(0.62, abs=0.02)


@pytest.mark.slow
def test_a_real_job_has_uneven_stages_and_lengths_and_a_slow_worker_is_named_where_it_has_one(real, seen):
    found, grid = shares(real), grid_of(real)
    assert named(real, 0.01) == {"lengths", "stages"}
    assert found["lengths"] > 0.2
    assert found["stages"] > 0.04
    shape = (len(grid.measured), *grid.ranks.shape, 1 + int(grid.numbers.max()))
    laid = relaid(real, pipelines.Laid(*np.zeros((2, *shape))), grid.seconds)
    even = [np.broadcast_to(each.mean(axis=(0, 1, 3), keepdims=True), shape) for each in (laid.forward, laid.backward)]
    assert named(seen(pipelines.Laid(*even)), 0.01) == {"stages"}
    for passes in (laid.forward, laid.backward):
        passes[:, 9, 1] *= 1.3
    slow = break_down(seen(laid))
    paces = {one.rank: one.pace for one in slow.ranks if one.pace != 1.0}
    assert paces == {laid.rank(9, 1): pytest.approx(1.3, abs=0.03)}
    assert slow.share("device") > 0.02
