"""Where steps and microbatches begin, by whatever a trace has that tells it."""

import pytest

from odcsim.observed import torch_traces
from traces import MadeStep, files, made, trace

STEP = MadeStep([[100] * 4] * 3, [64, 32, 16], loading=30)
RUN = made([[STEP, STEP]] * 2, ahead=20)
ROOT, LOOKED_UP = "FSDP::root_pre_forward", "aten::embedding"


def seen(tmp_path, events):
    return torch_traces.read(files(tmp_path, {**trace(RUN, 0), "traceEvents": events}))


def renamed(name, nested=0):
    """Another trainer's annotation of the forward, with as many of its modules inside."""
    roots = [e for e in trace(RUN, 0)["traceEvents"] if e["name"] == ROOT]
    inside = [{"name": name, "ts": i / 8, "dur": 2 - i / 4} for i in range(nested + 1)]
    return without(ROOT) + [{**e, **one, "ts": e["ts"] + one["ts"]} for e in roots for one in inside]


def without(*names):
    return [e for e in trace(RUN, 0)["traceEvents"] if not any(name in e["name"] for name in names)]


def another_forward():
    """A reference model's forward, without a backward, and on other samples."""
    events = renamed(ROOT)
    for event in list(events):
        if event["name"] in (ROOT, LOOKED_UP):
            args = {**event["args"], "Input Dims": [[1000, 16], [2, 999]]}
            events.append({**event, "ts": event["ts"] - 1.5, "dur": 0.5, "args": args})
    return events


def places_looked_up():
    """In a smaller table."""
    events = renamed(ROOT)
    looked = [e for e in events if e["name"] == LOOKED_UP]
    return events + [{**e, "ts": e["ts"] + 0.5, "args": {"Input Dims": [[512, 16], [1, 7]]}} for e in looked]


def fed_embeddings(*, flat=False):
    """A model that looks nothing up; `flat`: as many of its layers are given what has no samples."""
    events = renamed(ROOT)
    for event in events:
        if event["name"] == LOOKED_UP:
            ((_, (samples, tokens)), event["name"]) = event["args"]["Input Dims"][:2], "aten::linear"
            event["args"] = {"Input Dims": [[samples, tokens, 16], [48, 16], []]}
    linear = [e for e in events if flat and e["name"] == "aten::linear"]
    return events + [{**e, "args": {"Input Dims": [[512, 16], [48, 16], []]}} for e in linear]


def operators_alone():
    """Microbatches begin with a forward after a backward."""
    looked = [e for e in trace(RUN, 0)["traceEvents"] if e["name"] == LOOKED_UP for _ in range(9)]
    added = [{**e, "name": "aten::add", "ts": e["ts"] + i % 9 / 16, "dur": 0.01} for i, e in enumerate(looked)]
    return without(ROOT, LOOKED_UP) + [{**e, "args": {}} for e in added]


def launches_alone():
    """Microbatches end with the embedding's gradient, where a trace has nothing else of the host."""
    events = without(ROOT, LOOKED_UP, "autograd")
    for event in [e for e in events if e["name"] == "gemm"][3::4]:
        event["name"] = "void (anonymous namespace)::embedding_backward_feature_kernel<float>"
    return events


OTHERS = [("FullyShardedDataParallel.forward", 3), ("DistributedDataParallel.forward", 0)]
OTHERS += [("DeepSpeedEngine.forward", 0)]
TOLD = [renamed(ROOT), *(renamed(*other) for other in OTHERS), without(ROOT), another_forward(), places_looked_up()]
TOLD += [fed_embeddings()]
UNTOLD = [fed_embeddings(flat=True), operators_alone(), launches_alone()]


@pytest.mark.parametrize("case", range(len(TOLD + UNTOLD)))
def test_microbatches_are_known_by_whatever_tells_of_them(tmp_path, case):
    found, known = seen(tmp_path, (TOLD + UNTOLD)[case]), case < len(TOLD)
    assert found.rests == ("tokens" if known else "seconds")
    for step in found.steps:
        assert [m.tokens for m in step.microbatches] == ([64, 32, 16] if known else [0] * 3)
        assert [m.seconds for m in step.microbatches] == pytest.approx([4e-4] * 3, rel=0.1)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_forward_without_a_backward_is_in_no_microbatch(tmp_path, place):
    """Of evaluation, in the first step: before a microbatch or after the last."""
    events = trace(made([[STEP, STEP]] * 2, deferred=True), 0)["traceEvents"]
    updates = [e["ts"] for e in events if e["name"].startswith("Optimizer.step")]
    at = sorted([e["ts"] for e in events if e["name"] == ROOT][:3] + updates[:1])[place] - 2
    moved = [{**e, "ts": e["ts"] + 900 * (e["ts"] > at)} for e in events]
    for event in moved:
        event["dur"] += 900 * (event["name"].startswith("ProfilerStep") and event["ts"] <= at)
    root, looked, launch, kernel = (next(e for e in events if e["name"] == n)
                                    for n in (ROOT, LOOKED_UP, "cudaLaunchKernel", "gemm"))  # fmt: skip
    number = {"correlation": 10**6}
    moved += [{**root, "ts": at + 1}, {**looked, "ts": at + 2}, {**launch, "ts": at + 4, "args": number},
              {**kernel, "ts": at + 200, "dur": 600, "args": {**kernel["args"], **number}}]  # fmt: skip
    run = seen(tmp_path, moved)
    for step in run.steps:
        assert [m.tokens for m in step.microbatches] == [64, 32, 16]
        assert [m.seconds for m in step.microbatches] == pytest.approx([4e-4] * 3)
    assert len(run.lacks) == len(seen(tmp_path, events).lacks) + 1


def test_without_the_profiler_s_steps_the_optimizer_s_cut_once_and_without_any_mark_all_is_one(tmp_path):
    events = without("ProfilerStep")
    found = seen(tmp_path, events)
    assert [(step.number, len(step.microbatches)) for step in found.steps] == [(0, 3), (1, 3)]
    true = RUN.ranks[0].windows
    assert found.steps[1].tracks[0].edges[-1] * 1e6 == pytest.approx(true[1][1] - true[0][0])
    events += [{**e, "ts": e["ts"] + 1, "dur": e["dur"] - 2} for e in events if e["name"].startswith("Optimizer")]
    assert len(seen(tmp_path, events).steps) == 2  # two optimizers of one step
    (step,) = seen(tmp_path, without("ProfilerStep", "Optimizer")).steps
    assert len(step.microbatches) == 6
    for step in seen(tmp_path, without(ROOT, LOOKED_UP, "autograd")).steps:
        assert [m.seconds for m in step.microbatches] == pytest.approx([12e-4])


def test_steps_are_the_device_s_where_launches_are_not_told(tmp_path):
    """The host runs ahead, and its own ranges would have other kernels in them."""
    events = [e for e in without(ROOT, LOOKED_UP, "autograd") if e["cat"] != "cuda_runtime"]
    for number, (begin, end) in enumerate(RUN.ranks[0].windows):
        args = {"cat": "gpu_user_annotation", "pid": 0, "tid": 7, "args": {}}
        events.append({"ph": "X", "name": f"ProfilerStep#{number + 5}", "ts": begin, "dur": end - begin, **args})
    for event in events:
        event["ts"] += 700 if event["cat"] == "user_annotation" else 1000
    found = seen(tmp_path, events)
    assert [step.seconds * 1e6 for step in found.steps] == pytest.approx([b - a for a, b in RUN.ranks[0].windows])
