"""What is no trace, or not all of one, or not of one run, is refused in a line."""

import gzip
import json
import math
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import read_or_refused
from scripts import ROOT
from strategies import mutated

from odcsim.errors import InputError
from odcsim.observed import kineto
from traces import MadeStep, made, trace

STEP = MadeStep([[20, 20]], [8], loading=3, collecting=4)
RUN = made([[STEP, STEP]])
RECORDED = ROOT / "tests/odcsim/observed/fixtures"
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
PERFETTO = b"\x0a\x9c\x01\x0a\x06\x08\x01\x12\x02\xff\xfe\x80\x81\x52\x10"


WHOLE = json.dumps(trace(RUN, 0)).encode()
PACKED = gzip.compress(WHOLE, mtime=0)
HOST = [e for e in trace(RUN, 1)["traceEvents"] if e["cat"] in ("cpu_op", "user_annotation")]


def refused(paths):
    with pytest.raises(InputError) as caught:
        kineto.read(paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.json", b""),
        ("t.json", PNG),
        ("t.json", PERFETTO),
        ("t.json", b'{"model": "llama", "steps": [1, 2]}'),
        ("t.json", b"[1, 2]"),
        ("t.json", b'{"traceEvents": []}'),
        ("t.json", b'{"traceEvents": ' + b"[" * 3_000_000),
        ("t.json", b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "args": ' + b'{"a":' * 2_000_000),
        ("t.json", WHOLE[: len(WHOLE) // 2]),
        ("t.json.gz", PACKED[: len(PACKED) // 2]),
        ("t.json", None),
    ],
    ids=range(11),
)
def test_what_is_no_trace_or_not_all_of_one(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert refused([tmp_path / name]).startswith(str(tmp_path / name))


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "5", None, True, 1e30])
def test_times_that_are_none(tmp_path, value):
    for clock in ("ts", "dur"):
        content = trace(RUN, 0)
        next(e for e in content["traceEvents"] if e["cat"] == "kernel")[clock] = value
        (tmp_path / "t.json").write_text(json.dumps(content))
        refused([tmp_path / "t.json"])


def of_later_steps():
    content = trace(made([[STEP, STEP]] * 2), 1)
    for event in content["traceEvents"]:
        event["name"] = event["name"].replace("Step#", "Step#9")
    return content


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (trace(RUN, 0), trace(RUN, 0)),
        (trace(RUN, 0), trace(RUN, 1, world=8)),
        (trace(RUN, 0), of_later_steps()),
        (trace(RUN, 0), {**trace(RUN, 1), "distributedInfo": {"rank": 1}, "traceEvents": HOST}),
        ({"traceEvents": HOST}, {"traceEvents": HOST}),  # say no ranks
    ],
)
def test_files_that_are_not_of_one_run(tmp_path, one, other):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, content in zip(paths, (one, other), strict=True):
        path.write_text(json.dumps(content))
    refused(paths)
    paths[0].write_text(json.dumps(trace(RUN, 0)))
    paths[1].write_text(json.dumps(trace(RUN, 1)))
    assert kineto.read(paths).seen == (0, 1)


@pytest.mark.parametrize(("one", "other"), [*permutations(("lengths", "device", "none", "network"), 2)])
def test_ranks_of_two_runs_are_refused_by_name(one, other):
    paths = [f"{RECORDED}/{one}-rank0.json.gz", f"{RECORDED}/{other}-rank1.json.gz"]
    line = refused(paths)
    assert all(path in line for path in paths)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_clocks_that_no_shift_brings_together_are_those_of_another_run(tmp_path, place):
    """Torch notes which collectives they are, of as many and alike in both runs."""
    loads = ((3, 90000, 3, 3, 50000), (3, 3, 70000, 9000, 3))
    ran = [made([[replace(STEP, loading=us) for us in of]] * 4) for of in loads]
    paths = [tmp_path / f"rank{rank}.json" for rank in range(4)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(trace(ran[rank == place], rank)))
    assert refused(paths).startswith(str(paths[place]))


NCCL = {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


@pytest.mark.parametrize(
    ("about", "events", "fine"),
    [({"backend": "nccl", "rank": 0}, HOST, False), ({"rank": 0}, HOST, True), ({"rank": 0}, [*HOST, NCCL], False)],
)
def test_a_trace_of_a_gpu_s_job_that_has_no_event_of_it(tmp_path, about, events, fine):
    (tmp_path / "rank0.json").write_text(json.dumps({"distributedInfo": about, "traceEvents": events}))
    if fine:
        assert kineto.read([tmp_path / "rank0.json"]).seen == (0,)
    else:
        refused([tmp_path / "rank0.json"])


def test_calls_that_match_nobody_elses_do_no_harm(tmp_path):
    """One rank lost its first collectives, and torch notes nothing beside any."""
    run = made([[replace(STEP, loading=500), STEP]] * 2, told=False)
    paths = []
    for rank in (0, 1):
        content = trace(run, rank)
        gone = [e for e in content["traceEvents"] if "nccl" in e["name"]][: 2 * rank]
        content["traceEvents"] = [e for e in content["traceEvents"] if e not in gone]
        paths.append(tmp_path / f"{rank}.json")
        paths[-1].write_text(json.dumps(content))
    found = kineto.read(paths)
    met = [m for step in found.steps for m in step.meetings]
    assert {len(m.came) for m in met} == {1, 2}
    assert all(m.done + 1e-4 >= came for m in met for came in m.came.values())
    assert len(found.lacks) == 1


def test_where_both_ranks_lost_calls_ends_tell_which_are_one(tmp_path):
    """One the first of all gathers, the other the last: each has as many, and order matches none rightly."""
    run, paths = made([[STEP, STEP]] * 2, told=False), []
    for rank in (0, 1):
        content = trace(run, rank)
        gathers = [e for e in content["traceEvents"] if "AllGather" in e["name"]]
        content["traceEvents"] = [e for e in content["traceEvents"] if e is not gathers[-rank]]
        for event in content["traceEvents"]:  # as much in one step, so that order is all there is
            event["name"] = "ProfilerStep#1" if event["name"] == "ProfilerStep#5" else event["name"]
        content["traceEvents"] = [e for e in content["traceEvents"] if e["name"] != "ProfilerStep#6"]
        ranges = next(e for e in content["traceEvents"] if e["name"] == "ProfilerStep#1")
        ranges["dur"] = 10_000
        paths.append(tmp_path / f"{rank}.json")
        paths[-1].write_text(json.dumps({**content, "host_name": "one"}))
    met = [m for m in kineto.read(paths).steps[0].meetings if m.kind == "all-gather" and len(m.came) == 2]
    assert len(met) == len([e for e in run.ranks[0].events if "AllGather" in e["name"]]) - 2
    assert all(m.done > max(m.came.values()) for m in met)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rank=st.integers(0, 1))
def test_changed_traces_are_refused_or_read(tmp_path_factory, data, rank):
    folder = tmp_path_factory.getbasetemp()
    paths = [folder / "rank0.json", folder / "rank1.json"]
    contents = [trace(RUN, 0), trace(RUN, 1)]
    contents[rank] = data.draw(mutated(contents[rank]))
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content))
    with read_or_refused():
        for step in kineto.read(paths).steps:
            for track in step.tracks:
                assert len(track.kinds) == len(track.edges) - 1 == len(track.meetings) == len(track.microbatches)
                assert (track.edges[1:] > track.edges[:-1]).all()
                assert (track.meetings < len(step.meetings)).all()
