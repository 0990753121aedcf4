"""Traces of GPUs become what their ranks did, to the microsecond."""

import gzip
import json
from contextlib import nullcontext
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.errors import InputError
from odcsim.observed import torch_traces
from odcsim.observed.run import NO, Doing
from traces import BYTES, LAYER, UPDATE, MadeStep, files, made, trace, write

MICRO = 1e-6


@st.composite
def steps(draw):
    """One to three steps of one to four ranks, which all run as many microbatches of as many units."""
    ranks, count, units = draw(st.integers(1, 4)), draw(st.integers(1, 3)), 2 * draw(st.integers(1, 2))
    length = st.integers(10, 300)
    own = st.builds(
        MadeStep,
        st.lists(st.lists(length, min_size=units, max_size=units), min_size=count, max_size=count),
        st.lists(st.integers(1, 4000), min_size=count, max_size=count),
        loading=st.integers(0, 500), collecting=st.integers(0, 200),
        late=st.integers(0, 200), moving=st.integers(0, 50),
    )  # fmt: skip
    return draw(st.lists(st.lists(own, min_size=ranks, max_size=ranks), min_size=1, max_size=3))


def seen(run, folder, skews=None):
    return torch_traces.read(write(run, folder, skews or [0.0] * len(run.ranks)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


def painted(track):
    """The kind of every microsecond."""
    edges = np.round((track.edges - track.edges[0]) / MICRO).astype(int)
    return np.repeat(track.kinds, np.diff(edges)).tolist()


@settings(max_examples=60, deadline=None)
@given(steps=steps(), ahead=st.integers(0, 60), told=st.booleans(), skew=st.lists(st.integers(0, 10**10), min_size=4))
def test_what_ranks_did_is_given_back_whatever_their_clocks_say(folder, steps, ahead, told, skew):
    """Clocks are aligned by the ends of meetings."""
    run = made(steps, ahead=ahead, told=told)
    found = seen(run, folder, [float(s) for s in skew[: len(run.ranks)]])
    assert [step.number for step in found.steps] == [5 + i for i in range(len(steps))]
    for i, step in enumerate(found.steps):
        assert step.seconds == pytest.approx(np.mean([track.seconds for track in step.tracks]))
        for track in step.tracks:
            assert painted(track) == run.kinds(track.rank, i)
            assert (np.diff(track.edges) > 0).all()
            assert ((track.meetings != NO) == (track.kinds == Doing.MEETING)).all()
            mine = [m for m in step.microbatches if m.rank == track.rank]
            assert [m.number for m in mine] == list(range(len(steps[i][track.rank].tokens)))
            assert [m.tokens for m in mine] == [m.computed for m in mine] == list(steps[i][track.rank].tokens)
            assert [m.seconds / MICRO for m in mine] == pytest.approx(run.ranks[track.rank].computed[i], abs=1e-2)
    met = [m for step in found.steps for m in step.meetings]
    assert all(set(m.came) == set(found.seen) and m.ranks == len(run.ranks) for m in met)
    assert all(m.bytes == (2 * LAYER if told else 0) for m in met)
    first = met[0].done / MICRO - run.ranks[0].done[0]
    for rank in found.seen:
        came = np.array([m.came[rank] for m in met]) / MICRO - first
        assert sorted(came) == pytest.approx(sorted(run.ranks[rank].came), abs=1)


def even(units=4, count=2, seconds=100, tokens=64):
    return MadeStep([[seconds] * units] * count, [tokens] * count)


def changed(run, folder, change=lambda _: None, like=lambda e: "nccl" in e["name"]):
    """Traces of all ranks, whose events of a collective are changed."""
    contents = [trace(run, rank) for rank in range(len(run.ranks))]
    for event in (e for content in contents for e in content["traceEvents"] if like(e)):
        change(event)
    return torch_traces.read(files(folder, *contents))


@pytest.mark.parametrize(("skew", "late"), [(0, 40), (3000, 0)])
def test_on_one_machine_clocks_are_the_same_unless_somebody_would_leave_before_all_came(folder, skew, late):
    """The second rank's collectives end later, by half as much every other time."""
    run = made([[even(), even()]])
    contents = [{**trace(run, rank, skew=rank * skew), "host_name": "one"} for rank in (0, 1)]
    for i, event in enumerate(e for e in contents[1]["traceEvents"] if "nccl" in e["name"]):
        event["dur"] += late / (1 + i % 2)
    one, other = torch_traces.read(files(folder, *contents)).steps[0].tracks
    assert other.edges[0] == pytest.approx(one.edges[0], abs=1e-9)


def test_a_slow_device_takes_longer_for_equal_work(folder):
    slow = MadeStep([[130] * 4] * 2, [64] * 2)
    found = seen(made([[even(), slow], [even(), slow]]), folder)
    assert {name.split()[0] for name in found.alike} == {"gemm"}
    assert all(seconds == pytest.approx({0: 1e-4, 1: 1.3e-4}) for seconds in found.alike.values())


def persisting(run, folder, like=lambda e: e["name"] == "gemm"):
    """The same kernels with a grid of as many blocks as a device has processors."""
    return changed(run, folder, lambda event: event["args"].update(grid=[132, 1, 1]), like)


def test_a_kernel_that_persists_does_not_say_how_much_work_it_is(folder):
    draws = Random(3)
    tokens = [[[int(300 * draws.lognormvariate(0, 1)) + 9 for _ in "ab"] for _ in range(4)] for _ in range(4)]
    drawn = [[MadeStep([[20 + n // 2] * 4 for n in own], own) for own in step] for step in tokens]
    run = persisting(made(drawn), folder)
    assert run.alike == {}
    assert all(rank.pace == 1.0 for rank in break_down(run).ranks)
    always_more = [[even(), even(seconds=200, tokens=128)]] * 2
    assert persisting(made(always_more), folder).alike == {}


def test_a_kernel_that_takes_as_long_whatever_its_rank_computes_is_equal_work(folder):
    """Of one that persists only its steadiness tells."""
    steps = []
    for first, times in ((5, 1.0), (9, 1.3)):
        tokens = [first, 20, 40, 60]
        steps.append(MadeStep([[round(times * s) for s in (100, 10 * n, 10 * n, 100)] for n in tokens], tokens))
    run = made([steps] * 2)
    found = persisting(run, folder, lambda e: e["name"] == "gemm" and e["args"]["grid"][1] in (0, 3))
    kernels = [seconds for name, seconds in found.alike.items() if "[132, 1, 1]" in name]
    assert kernels == [pytest.approx({0: 1e-4, 1: 1.3e-4})]


def test_what_else_a_trace_tells(folder):
    """Gradients that leave with the last microbatch are deferred."""
    found = seen(made([[even(), even()]]), folder)
    assert found.updates == pytest.approx([UPDATE * MICRO] * 2)
    assert (found.ranks, found.seen, found.rests, found.layers) == (2, (0, 1), "tokens", 2)
    assert (found.sync, len(found.lacks)) == ("collective", 1)
    assert seen(made([[even(), even()]], deferred=True), folder).sync == "deferred"
    assert seen(made([[even(count=1), even(count=1)]], deferred=True), folder).sync == "collective"
    collected = replace(even(), collecting=5)
    assert seen(made([[collected, collected]]), folder).lacks == ()
    (folder / "some.json.gz").write_bytes(gzip.compress(json.dumps(trace(made([[even()] * 3]), 1, world=64)).encode()))
    found = torch_traces.read([folder / "some.json.gz"])
    assert (found.ranks, found.seen, found.alike, len(found.lacks)) == (64, (1,), {}, 2)
    assert all(set(m.came) == {1} for m in found.steps[0].meetings)


NAMES = [  # of files, and the first one's rank
    (["run_rank_7.json"], 7), (["rank7.pt.trace.json"], 7), (["step_100.rank7.json"], 7),
    (["2026.11.24.rank-7.json"], 7), (["host_12345.1700000.pt.trace.json"], 0),
    (["ip-10-0-0-1_999.17.json"], 0), (["epoch-3.json"], 0), (["7.json"], 0), (["0.json", "1.json", "2.json"], 0),
    (["run_44.0.json", "run_44.1.json"], 0), (["step_5_0.json", "step_5_1.json"], 0),
    (["host_12346.1701.json", "host_12345.1700.json"], None),  # as their one device says
]  # fmt: skip


@pytest.mark.parametrize(("names", "first"), NAMES)
def test_a_rank_is_known_by_its_file_where_the_trace_does_not_say_it(tmp_path, names, first):
    run = made([[even() for _ in names]])
    for rank, name in enumerate(names):
        (tmp_path / name).write_text(json.dumps({**trace(run, rank), "distributedInfo": None}))
    with nullcontext() if first is not None else pytest.raises(InputError):
        found = torch_traces.read([tmp_path / name for name in names])
        assert found.seen == tuple(range(first, found.ranks))
        assert len(found.seen) == len(names)


def renamed(name):
    return lambda event: event.update(name=f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)")


@pytest.mark.parametrize(("told", "kinds"), [(True, {"all-gather", "reduce-scatter"}), (False, {"collective"})])
def test_rccl_has_one_kernel_for_all(folder, told, kinds):
    step = changed(made([[even(), even()]], told=told), folder, renamed("Generic_4")).steps[0]
    assert {(m.kind, len(m.came)) for m in step.meetings} == {(kind, 2) for kind in kinds}


def test_sends_are_of_stages_unless_the_host_asked_for_all_to_all(folder):
    run = made([[even(), even()]], told=False)
    (track, _) = changed(run, folder, renamed("SendRecv")).steps[0].tracks
    assert {Doing.STAGE} == set(track.kinds.tolist()) & {Doing.STAGE, Doing.MEETING}
    for rank in run.ranks:
        launches = {e["args"]["correlation"]: e["ts"] for e in rank.events if e["cat"] == "cuda_runtime"}
        sent = [launches[e["args"]["correlation"]] for e in rank.events if "nccl" in e["name"]]
        for i, name in enumerate(("nccl:all_to_all", "nccl:send 0->1", "nccl:coalesced")):
            asked = {"cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": sent[i] - 1, "dur": 2}
            rank.events.append({"ph": "X", "args": {}, **asked})
    step = changed(run, folder, renamed("SendRecv"), lambda e: "DevKernel" in e["name"]).steps[0]
    assert {Doing.MEETING, Doing.STAGE} <= set(step.tracks[0].kinds.tolist())
    assert [m.kind for m in step.meetings][:4] == ["all-to-all", "send", "send-recv", "send-recv"]


def test_groups_of_some_ranks_do_not_meet_and_transfers_are_the_shortest_of_each_size(folder):
    """Two groups of one name, of one rank each: torch says how many meet."""
    found = changed(made([[even(), even()]]), folder, lambda event: event["args"].update({"Group size": 1}))
    assert all(len(m.came) == 1 == m.ranks for m in found.steps[0].meetings)
    sizes = Random(0)

    def change(event):
        event["args"]["Out msg nelems"] = LAYER * sizes.randint(1, 3)

    found = changed(made([[even(), even()]] * 2), folder, change)
    assert {t.kind for t in found.transfers} == {"all-gather", "reduce-scatter"}
    assert {t.bytes for t in found.transfers} == {2 * LAYER, 4 * LAYER, 6 * LAYER}
    assert all(t.devices == 2 and t.seconds == pytest.approx(BYTES * MICRO) for t in found.transfers)
