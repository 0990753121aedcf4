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
from odcsim.observed import torch_traces
from traces import MadeStep, files, made, trace

STEP = MadeStep([[20, 20]], [8], loading=3, collecting=4)
RUN = made([[STEP, STEP]])
RECORDED = ROOT / "tests/odcsim/observed/fixtures"
WHOLE = json.dumps(trace(RUN, 0)).encode()
PACKED = gzip.compress(WHOLE, mtime=0)
HOST = [e for e in trace(RUN, 1)["traceEvents"] if e["cat"] in ("cpu_op", "user_annotation")]
NO_TRACE = [  # names and bytes
    ("t.json", b""), ("t.json", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"),
    ("t.json", b"\x0a\x9c\x01\x0a\x06\x08\x01\x12\x02\xff\xfe\x80\x81\x52\x10"),  # Perfetto's
    ("t.json", b'{"model": "llama", "steps": [1, 2]}'), ("t.json", b"[1, 2]"), ("t.json", b'{"traceEvents": []}'),
    ("t.json", b'{"traceEvents": ' + b"[" * 3_000_000),
    ("t.json", b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "args": ' + b'{"a":' * 2_000_000),
    ("t.json", WHOLE[: len(WHOLE) // 2]), ("t.json.gz", PACKED[: len(PACKED) // 2]), ("t.json", None),
]  # fmt: skip


def refused(paths):
    with pytest.raises(InputError) as caught:
        torch_traces.read(paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "content"), NO_TRACE, ids=range(len(NO_TRACE)))
def test_what_is_no_trace_or_not_all_of_one(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert refused([tmp_path / name]).startswith(str(tmp_path / name))


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "5", None, True, 1e30])
def test_times_that_are_none(tmp_path, value):
    for clock in ("ts", "dur"):
        content = trace(RUN, 0)
        next(e for e in content["traceEvents"] if e["cat"] == "kernel")[clock] = value
        refused(files(tmp_path, content))


LATER = trace(made([[STEP, STEP]] * 2), 1)
LATER["traceEvents"] = [e | {"name": e["name"].replace("Step#", "Step#9")} for e in LATER["traceEvents"]]
SAY_NO_RANKS = {"traceEvents": HOST}
UNLIKE = [
    (trace(RUN, 0), trace(RUN, 0)), (trace(RUN, 0), trace(RUN, 1, world=8)), (trace(RUN, 0), LATER),
    (trace(RUN, 0), {**SAY_NO_RANKS, "distributedInfo": {"rank": 1}}), (SAY_NO_RANKS, SAY_NO_RANKS),
]  # fmt: skip


def test_files_that_are_not_of_one_run(tmp_path):
    for pair in UNLIKE:
        refused(files(tmp_path, *pair))
    assert torch_traces.read(files(tmp_path, trace(RUN, 0), trace(RUN, 1))).seen == (0, 1)


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
    paths = files(tmp_path, *(trace(ran[rank == place], rank) for rank in range(4)))
    assert refused(paths).startswith(str(paths[place]))


NCCL = {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


def test_a_trace_of_a_gpu_s_job_that_has_no_event_of_it(tmp_path):
    for about, events in (({"backend": "nccl", "rank": 0}, HOST), ({"rank": 0}, [*HOST, NCCL])):
        refused(files(tmp_path, {"distributedInfo": about, "traceEvents": events}))
    assert torch_traces.read(files(tmp_path, {"distributedInfo": {"rank": 0}, "traceEvents": HOST})).seen == (0,)


def test_calls_that_match_nobody_elses_do_no_harm(tmp_path):
    """One rank lost its first collectives, and torch notes nothing beside any."""
    run = made([[replace(STEP, loading=500), STEP]] * 2, told=False)
    contents = [trace(run, rank) for rank in (0, 1)]
    gone = [e for e in contents[1]["traceEvents"] if "nccl" in e["name"]][:2]
    contents[1]["traceEvents"] = [e for e in contents[1]["traceEvents"] if e not in gone]
    found = torch_traces.read(files(tmp_path, *contents))
    met = [m for step in found.steps for m in step.meetings]
    assert {len(m.came) for m in met} == {1, 2}
    assert all(m.done + 1e-4 >= came for m in met for came in m.came.values())
    assert len(found.lacks) == 1


def test_where_both_ranks_lost_calls_ends_tell_which_are_one(tmp_path):
    """One the first of all gathers, the other the last: each has as many, and order matches none rightly."""
    run, contents = made([[STEP, STEP]] * 2, told=False), []
    for rank in (0, 1):
        events = trace(run, rank)["traceEvents"]
        lost = [e for e in events if "AllGather" in e["name"]][-rank]
        events = [e for e in events if e is not lost and e["name"] != "ProfilerStep#6"]
        for event in events:  # as much in one step, so that order is all there is
            if event["name"] == "ProfilerStep#5":
                event |= {"name": "ProfilerStep#1", "dur": 10_000}
        contents.append({**trace(run, rank), "traceEvents": events, "host_name": "one"})
    paths = files(tmp_path, *contents)
    met = [m for m in torch_traces.read(paths).steps[0].meetings if m.kind == "all-gather" and len(m.came) == 2]
    assert len(met) == len([e for e in run.ranks[0].events if "AllGather" in e["name"]]) - 2
    assert all(m.done > max(m.came.values()) for m in met)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rank=st.integers(0, 1))
def test_changed_traces_are_refused_or_read(tmp_path_factory, data, rank):
    contents = [trace(RUN, 0), trace(RUN, 1)]
    contents[rank] = data.draw(mutated(contents[rank]))
    paths = files(tmp_path_factory.getbasetemp(), *contents)
    with read_or_refused():
        for step in torch_traces.read(paths).steps:
            for track in step.tracks:
                assert len(track.kinds) == len(track.edges) - 1 == len(track.meetings) == len(track.microbatches)
                assert (track.edges[1:] > track.edges[:-1]).all()
                assert (track.meetings < len(step.meetings)).all()
