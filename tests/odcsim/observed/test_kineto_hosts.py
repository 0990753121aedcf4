"""Traces without a GPU: the work is what the main thread does; where it shows no sign of life, it waits for gloo."""

import json

import numpy as np
import pytest
from jobs import torchrun
from scripts import ROOT

from odcsim.errors import InputError
from odcsim.observed import run_files, torch_traces
from odcsim.observed.run import NO, Doing
from traces import files

FIXTURES = ROOT / "tests/odcsim/observed/fixtures"
TRUTH = json.loads((FIXTURES / "truth.json").read_text())["runs"]
REAL = ROOT.parent / "shared/traces"
MAIN, LOOP = 1, 2


def event(name, begin, end, cat="cpu_op", tid=MAIN, dims=None):
    args = {"Input Dims": dims, "Input type": ["float"]} if dims else {}
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": begin, "dur": end - begin, "args": args}


def mark(name, begin, end, tid=MAIN, dims=None):
    return event(name, begin, end, "user_annotation", tid, dims)


def track(folder, *events):
    """Kinds of the only step, with where they begin and end in microseconds."""
    content = {"traceEvents": [mark("ProfilerStep#3", 0, 1000), *events], "distributedInfo": {"rank": 0}}
    (step,) = torch_traces.read(files(folder, content)).steps
    (one,) = step.tracks
    edges = np.round((one.edges - one.edges[0]) * 1e6).astype(int).tolist()
    return list(zip(map(Doing, one.kinds), edges, edges[1:], strict=False)), step.meetings


GATHER = event("c10d::_allgather_base_", 110, 120, dims=[[64], [32]])
RAN = mark("gloo:all_gather", 115, 190, LOOP, [[32]])


BEFORE, AFTER = event("aten::mm", 0, 100), event("aten::mm", 200, 900)
C, H, M, E, L, G = Doing.COMPUTE, Doing.HOST, Doing.MEETING, Doing.EDGE, Doing.LOADER, Doing.COLLECTOR
NEXT, PYTHON = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "python_function"
READS = "torch/utils/data/dataloader.py(700): __next__"
# It waits with the call of the collective, and until it is awake again.
WAITED = [(C, 0, 100), (H, 100, 110), (M, 110, 200), (C, 200, 900), (E, 900, 1000)]


SHOWN = [
    ([BEFORE, GATHER, RAN, AFTER], WAITED),
    # what a collective's call moves is the collective's
    ([BEFORE, GATHER, event("aten::clone", 112, 118, dims=[[64]]), RAN, AFTER], WAITED),
    # under work it is waited for by nobody
    ([BEFORE, GATHER, RAN, event("aten::mm", 130, 900)],
     [(C, 0, 100), (H, 100, 110), (M, 110, 120), (H, 120, 130), (C, 130, 900), (E, 900, 1000)]),
    # an operator that calls a collective, as the norm of a DTensor does, is not all work
    ([BEFORE, event("aten::linalg_vector_norm", 100, 210, dims=[[8]]), GATHER, RAN, event("aten::mm", 210, 900)],
     [(C, 0, 100), (H, 100, 110), (M, 110, 210), (C, 210, 900), (E, 900, 1000)]),
    # operators of the loader and of other threads are no work
    ([mark(NEXT, 0, 50), event("aten::randint", 10, 40), event("aten::div_", 60, 80, tid=LOOP), mark("gc", 80, 95),
      event("aten::mm", 100, 1000)], [(L, 0, 50), (E, 50, 80), (G, 80, 95), (E, 95, 100), (C, 100, 1000)]),
    # where stacks were recorded; garbage is collected by whatever thread, and all others stand still
    ([BEFORE, event(READS, 100, 200, PYTHON), event("Python GC", 220, 300, PYTHON, LOOP),
      event("<built-in function collect>", 290, 310, PYTHON), event("collect.py(3): go", 310, 330, PYTHON),
      event(READS, 330, 350, PYTHON, LOOP), event("aten::mm", 400, 1000)],
     [(C, 0, 100), (L, 100, 200), (H, 200, 220), (G, 220, 310), (H, 310, 400), (C, 400, 1000)]),
]  # fmt: skip


@pytest.mark.parametrize(("events", "kinds"), SHOWN)
def test_what_a_thread_shows_is_what_it_does(tmp_path, events, kinds):
    """Where it shows no sign of life, it waits for what is done then."""
    found, meetings = track(tmp_path, *events)
    assert found == kinds
    for met in meetings:
        assert (met.kind, met.bytes, met.done) == ("all-gather", 4 * 64, pytest.approx(190e-6))
        assert met.came == {0: pytest.approx(110e-6)}


def test_what_comes_long_after_is_the_host_s(tmp_path):
    sleep = 120_000
    late = [mark("ProfilerStep#3", 0, sleep), event("aten::mm", sleep - 100, sleep - 50)]
    (one,) = torch_traces.read(files(tmp_path, {"traceEvents": [BEFORE, GATHER, RAN, *late]})).steps[0].tracks
    seconds = {kind: np.diff(one.edges)[one.kinds == kind].sum() * 1e6 for kind in Doing}
    assert seconds[Doing.MEETING] == pytest.approx(80)
    assert seconds[Doing.HOST] == pytest.approx(sleep - 100 - 190 + 10)


@pytest.mark.parametrize("case", TRUTH)
def test_recorded_runs_did_what_each_rank_measured_by_itself(case):
    run, truth = torch_traces.read([FIXTURES / f"{case}-rank{rank}.json.gz" for rank in (0, 1)]), TRUTH[case]
    assert np.mean([step.seconds for step in run.steps]) == pytest.approx(truth["step"], rel=0.01)
    for rank, measured in enumerate(truth["ranks"]):
        tracks = [step.tracks[rank] for step in run.steps]

        def share(kind, tracks=tracks):
            return np.mean([np.diff(t.edges)[t.kinds == kind].sum() for t in tracks]) / truth["step"]

        assert share(Doing.LOADER) == pytest.approx(measured["loader"] / truth["step"], abs=0.005)
        assert share(Doing.COLLECTOR) == pytest.approx(measured["collector"] / truth["step"], abs=0.005)
        assert share(Doing.MEETING) == pytest.approx(measured["blocked"] / truth["step"], abs=0.01)
        assert share(Doing.COMPUTE) > measured["compute"] / truth["step"] - 0.005  # and copies of FSDP's
    slow = truth["injected"]["device"]
    for seconds in run.alike.values():
        assert max(seconds.values()) / min(seconds.values()) == pytest.approx(slow, rel=0.05)
    assert run.alike


@pytest.mark.slow
@pytest.mark.parametrize(("wrap", "layers"), [("fsdp2", 3), ("ddp", 0)])
def test_a_live_run_over_gloo(tmp_path, wrap, layers):
    script = ROOT / "tests/odcsim/observed/profiled.py"
    done = torchrun(tmp_path, "--nproc-per-node", "2", str(script), wrap, str(tmp_path), warnings="default")
    assert done.returncode == 0, done.stderr
    run = torch_traces.read([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    assert (run.ranks, run.seen, run.sync, run.layers, run.rests) == (2, (0, 1), "collective", layers, "tokens")
    assert [step.number for step in run.steps] == [2, 3, 4]
    kept = [json.loads((tmp_path / f"kept{rank}.json").read_text()) for rank in (0, 1)]
    for i, step in enumerate(run.steps):
        for rank in (0, 1):
            assert [m.tokens for m in step.microbatches if m.rank == rank] == kept[rank][i]
        assert all(len(met.came) == 2 and met.done > max(met.came.values()) for met in step.meetings)
        for one in step.tracks:
            assert (np.diff(one.edges) > 0).all()
            assert ((one.meetings != NO) == (one.kinds == Doing.MEETING)).all()
            assert (one.kinds == Doing.MEETING).any()
    ends = [track.edges[-1] for step in run.steps for track in step.tracks]
    begins = [track.edges[0] for step in run.steps[1:] for track in step.tracks]
    assert ends[:4] == pytest.approx(begins)
    own = {(rank, i + 2): [((n,), n) for n in each] for rank in (0, 1) for i, each in enumerate(kept[rank])}
    assert run_files.with_lengths(run, own, "here").rests == "lengths"
    with pytest.raises(InputError):  # as who counts from 1 says it
        run_files.with_lengths(run, {(rank, n): own[rank, max(n - 1, 2)] for rank, n in own}, "here")


@pytest.mark.skipif(not REAL.is_dir(), reason="real traces lie beside the checkout")
def test_two_real_ranks_of_128():
    run = torch_traces.read(sorted(REAL.glob("hta-sampled-rank-*.json.gz")))
    assert (run.ranks, run.seen, [step.number for step in run.steps]) == (128, (0, 1), [551, 552])
    assert [step.seconds for step in run.steps] == pytest.approx([0.6077, 0.6268], abs=1e-4)
    both = [met for step in run.steps for met in step.meetings if len(met.came) == 2]
    assert len(both) >= 6
    assert all(met.done >= max(met.came.values()) for met in both)
    with pytest.raises(InputError):
        torch_traces.read([REAL / "hta-rank-non-gpu.json.gz"])
