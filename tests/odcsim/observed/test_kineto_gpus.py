"""Traces of GPUs become what their ranks did, to the microsecond."""

import gzip
import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.decide.diagnosis.parts import broken_down
from odcsim.errors import InputError
from odcsim.observed import kineto
from odcsim.observed.run import NO, Doing
from traces import BYTES, LAYER, UPDATE, MadeStep, made, trace, write

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
    return kineto.read(write(run, folder, skews or [0.0] * len(run.ranks)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


def painted(track):
    """The kind of every microsecond."""
    edges = np.round((track.edges - track.edges[0]) / MICRO).astype(int)
    return np.repeat(track.kinds, np.diff(edges)).tolist()


@settings(max_examples=60, deadline=None)
@given(steps=steps(), ahead=st.integers(0, 60), told=st.booleans(), skew=st.lists(st.integers(0, 10**9), min_size=4))
def test_what_ranks_did_is_given_back(folder, steps, ahead, told, skew):
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


@settings(max_examples=40, deadline=None)
@given(steps=steps(), told=st.booleans(), skew=st.lists(st.integers(0, 10**10), min_size=4))
def test_clocks_are_aligned_by_the_ends_of_meetings(folder, steps, told, skew):
    run = made(steps, told=told)
    found = seen(run, folder, [float(s) for s in skew[: len(run.ranks)]])
    for rank in found.seen:
        met = [m for step in found.steps for m in step.meetings]
        came = np.array([m.came[rank] for m in met]) / MICRO
        true = np.array(run.ranks[rank].came)
        assert len(met) == len(true)
        assert all(set(m.came) == set(found.seen) and m.ranks == len(run.ranks) for m in met)
        first = met[0].done / MICRO - run.ranks[0].done[0]
        assert sorted(came - first) == pytest.approx(sorted(true), abs=1)
        assert all(m.bytes == (2 * LAYER if told else 0) for m in met)


def named(run, folder, skew, *, late=0):
    """Of one machine, whose second rank's collectives end later, by half as much every other time."""
    paths = []
    for rank in (0, 1):
        content = {**trace(run, rank, skew=rank * skew), "host_name": "one"}
        for i, event in enumerate(e for e in content["traceEvents"] if "nccl" in e["name"]):
            event["dur"] += rank * late / (1 + i % 2)
        paths.append(folder / f"{rank}.json")
        paths[-1].write_text(json.dumps(content))
    return kineto.read(paths)


def test_on_one_machine_clocks_are_the_same_unless_somebody_would_leave_before_all_came(folder):
    run = made([[even(), even()]])
    shift = [step.tracks[1].edges[0] - step.tracks[0].edges[0] for step in named(run, folder, 0, late=40).steps]
    assert shift == pytest.approx([0.0], abs=1e-9)
    found = named(run, folder, 3000)
    assert found.steps[0].tracks[1].edges[0] == pytest.approx(found.steps[0].tracks[0].edges[0], abs=1e-9)


def even(units=4, count=2, seconds=100, tokens=64):
    return MadeStep([[seconds] * units] * count, [tokens] * count)


def test_a_slow_device_takes_longer_for_equal_work(folder):
    slow = MadeStep([[130] * 4] * 2, [64] * 2)
    found = seen(made([[even(), slow], [even(), slow]]), folder)
    assert {name.split()[0] for name in found.alike} == {"gemm"}
    assert all(seconds == pytest.approx({0: 1e-4, 1: 1.3e-4}) for seconds in found.alike.values())


def persisting(run, folder, like=lambda e: e["name"] == "gemm"):
    """The same kernels with a grid of as many blocks as a device has processors."""
    paths = write(run, folder, [0.0] * len(run.ranks))
    for path in paths:
        content = json.loads(path.read_text())
        for event in filter(like, content["traceEvents"]):
            event["args"]["grid"] = [132, 1, 1]
        path.write_text(json.dumps(content))
    return kineto.read(paths)


def test_a_kernel_that_persists_does_not_say_how_much_work_it_is(folder):
    draws = Random(3)
    tokens = [[[int(300 * draws.lognormvariate(0, 1)) + 9 for _ in "ab"] for _ in range(4)] for _ in range(4)]
    drawn = [[MadeStep([[20 + n // 2] * 4 for n in own], own) for own in step] for step in tokens]
    run = persisting(made(drawn), folder)
    assert run.alike == {}
    assert all(rank.pace == 1.0 for rank in broken_down(run).ranks)
    always_more = [[even(), even(seconds=200, tokens=128)]] * 2
    assert persisting(made(always_more), folder).alike == {}


def test_a_kernel_that_takes_as_long_whatever_its_rank_computes_is_equal_work(folder):
    """Of one that persists only its steadiness tells."""

    def drawn(first, times):
        tokens = [first, 20, 40, 60]
        return MadeStep([[round(times * s) for s in (100, 10 * n, 10 * n, 100)] for n in tokens], tokens)

    def last(event):
        return event["name"] == "gemm" and event["args"]["grid"][1] in (0, 3)

    found = persisting(made([[drawn(5, 1.0), drawn(9, 1.3)]] * 2), folder, last)
    kernels = [seconds for name, seconds in found.alike.items() if "[132, 1, 1]" in name]
    assert kernels == [pytest.approx({0: 1e-4, 1: 1.3e-4})]


def test_gradients_that_leave_with_the_last_microbatch_are_deferred(folder):
    assert seen(made([[even(), even()]]), folder).sync == "collective"
    assert seen(made([[even(), even()]], deferred=True), folder).sync == "deferred"
    assert seen(made([[even(count=1), even(count=1)]], deferred=True), folder).sync == "collective"


def test_what_else_a_trace_tells(folder):
    found = seen(made([[even(), even()]]), folder)
    assert found.updates == pytest.approx([UPDATE * MICRO] * 2)
    assert (found.ranks, found.seen, found.rests, found.layers) == (2, (0, 1), "tokens", 2)
    assert found.source == "torch.profiler traces of 2 ranks"
    assert [lack.split(":")[0] for lack in found.lacks] == ["garbage collection apart from a late host"]
    collected = replace(even(), collecting=5)
    assert seen(made([[collected, collected]]), folder).lacks == ()


def test_some_ranks_of_many(folder):
    run = made([[even(), even(), even()]])
    (folder / "some.json.gz").write_bytes(gzip.compress(json.dumps(trace(run, 1, world=64)).encode()))
    found = kineto.read([folder / "some.json.gz"])
    assert (found.ranks, found.seen, found.alike) == (64, (1,), {})
    assert "when the 63 ranks that were not seen" in found.lacks[0]
    assert all(set(m.came) == {1} for m in found.steps[0].meetings)


def nameless(folder, *names):
    """Traces that do not say their ranks, nor a device that does."""
    run = made([[even() for _ in names]])
    for rank, name in enumerate(names):
        content = trace(run, rank)
        del content["distributedInfo"]
        (folder / name).write_text(json.dumps(content))
    return kineto.read([folder / name for name in names])


def test_a_rank_is_known_by_its_file_where_the_trace_does_not_say_it(tmp_path):
    for name in ("run_rank_7.json", "rank7.pt.trace.json", "step_100.rank7.json", "2026.11.24.rank-7.json"):
        assert nameless(tmp_path, name).seen == (7,)
    for name in ("host_12345.1700000.pt.trace.json", "ip-10-0-0-1_999.17.json", "epoch-3.json", "7.json"):
        assert (nameless(tmp_path, name).seen, nameless(tmp_path, name).ranks) == ((0,), 1)
    for names in (
        ("0.json", "1.json", "2.json"),
        ("run_44.0.json", "run_44.1.json"),
        ("step_5_0.json", "step_5_1.json"),
    ):
        assert nameless(tmp_path, *names).seen == tuple(range(len(names)))
    with pytest.raises(InputError, match="is of rank 0, as"):  # as their one device says
        nameless(tmp_path, "host_12345.1700.json", "host_12346.1701.json")


def changed(folder, run, change):
    """Of both ranks, with each event of a collective changed."""
    paths = []
    for rank in (0, 1):
        content = trace(run, rank)
        for event in content["traceEvents"]:
            if "nccl" in event["name"]:
                change(event)
        paths.append(folder / f"{rank}.json")
        paths[-1].write_text(json.dumps(content))
    return kineto.read(paths)


def test_rccl_has_one_kernel_for_all(folder):
    def change(event):
        event["name"] = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"

    run = made([[even(), even()]])
    assert {m.kind for m in changed(folder, run, change).steps[0].meetings} == {"all-gather", "reduce-scatter"}
    untold = changed(folder, made([[even(), even()]], told=False), change).steps[0]
    assert {(m.kind, len(m.came)) for m in untold.meetings} == {("collective", 2)}


def test_sends_are_of_stages_unless_the_host_asked_for_all_to_all(folder):
    def change(event):
        event["name"] = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

    run = made([[even(), even()]], told=False)
    (track, _) = changed(folder, run, change).steps[0].tracks
    assert {Doing.STAGE} == set(track.kinds.tolist()) & {Doing.STAGE, Doing.MEETING}
    for rank in run.ranks:
        launches = {e["args"]["correlation"]: e["ts"] for e in rank.events if e["cat"] == "cuda_runtime"}
        sent = [launches[e["args"]["correlation"]] for e in rank.events if "nccl" in e["name"]]
        for i, name in enumerate(("nccl:all_to_all", "nccl:send 0->1", "nccl:coalesced")):
            asked = {"cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": sent[i] - 1, "dur": 2}
            rank.events.append({"ph": "X", "args": {}, **asked})
    step = changed(folder, run, lambda event: change(event) if "DevKernel" in event["name"] else None).steps[0]
    assert {Doing.MEETING, Doing.STAGE} <= set(step.tracks[0].kinds.tolist())
    assert [m.kind for m in step.meetings][:4] == ["all-to-all", "send", "send-recv", "send-recv"]


def test_groups_of_some_ranks_do_not_meet_each_other(folder):
    """Two groups of one name, of one rank each: torch says how many meet."""

    def change(event):
        event["args"]["Group size"] = 1

    found = changed(folder, made([[even(), even()]]), change)
    assert all(len(m.came) == 1 == m.ranks for m in found.steps[0].meetings)


def test_transfers_are_the_shortest_of_each_size(folder):
    sizes = Random(0)

    def change(event):
        event["args"]["Out msg nelems"] = LAYER * sizes.randint(1, 3)

    found = changed(folder, made([[even(), even()]] * 2), change)
    assert {t.kind for t in found.transfers} == {"all-gather", "reduce-scatter"}
    assert {t.bytes for t in found.transfers} == {2 * LAYER, 4 * LAYER, 6 * LAYER}
    assert all(t.devices == 2 and t.seconds == pytest.approx(BYTES * MICRO) for t in found.transfers)


@pytest.mark.parametrize(("world", "words"), [(2, "1 rank that was not seen"), (3, "2 ranks that were not seen")])
def test_one_rank_that_was_not_seen_is_one(tmp_path, world, words):
    (tmp_path / "rank0.json").write_text(json.dumps(trace(made([[MadeStep([[20, 20]], [8])] * 2]), 0, world=world)))
    assert f"when the {words} came to a meeting" in kineto.read([tmp_path / "rank0.json"]).lacks
