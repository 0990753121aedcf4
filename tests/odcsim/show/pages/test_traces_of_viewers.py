"""Timelines as viewers of traces read them, Perfetto and torch.profiler's, whose seconds are the timeline's."""

import gzip
import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from strategies import cases

from odcsim.decide.asking import ask
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors import analytic
from odcsim.executors.simulation import simulate
from odcsim.fitting.kineto import read_trace
from odcsim.recipe import Recipe
from odcsim.results import metrics
from odcsim.show.pages import perfetto, profiler
from odcsim.timeline import About, Block, Timeline


def timeline_of(case):
    minibatches, devices = case.counts.shape
    numbers = np.arange(minibatches)
    block = Block(case.program, numbers, case.counts, *analytic.run(case.program, case.durations))
    about = About("analytic", Recipe(), "b", "m", "d", "calibrated", "h", True, devices, 1)
    return Timeline(about, (block,), numbers, numbers)


def tracks(events):
    """Whole nanoseconds (start, end, event) of each (device, track)."""
    found = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            start = round(e["ts"] * 1000)
            found[e["pid"], e["tid"]].append((start, start + round(e["dur"] * 1000), e))
    return found


@given(cases(minibatches=(1, 3)))
def test_slices_of_a_track_nest_and_come_to_what_metrics_says(case):
    """So do counters."""
    timeline = timeline_of(case)
    usage, total = metrics.usage(timeline), defaultdict(float)
    every = [*perfetto.events(timeline, range(len(timeline.samples)))]
    for (_, track), slices in tracks(every).items():
        open_until = []
        for start, end, event in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
            total[event["cat"] if track == 0 else ("moved", event["cat"])] += (end - start) / 1e9
    total["compute"] = sum(total[kind] for kind in ("forward", "head", "backward"))
    for kind in ("compute", "wait_inside", "wait_end"):
        assert total[kind] == pytest.approx(getattr(usage, kind).sum(), abs=1e-6), kind
    idle = sum(float(getattr(usage, part).sum()) for part in metrics.PARTS)
    wanted = {"devices idle": idle, **{f"{kind} in flight": total["moved", kind] for kind in ("gather", "push")}}
    for name, seconds in wanted.items():
        told = [(e["ts"] / 1e6, e["args"][name]) for e in every if e["ph"] == "C" and e["name"] == name]
        times = [at for at, _ in told] + [float(usage.makespan.sum())]
        assert times == sorted(times) or times[-1] == pytest.approx(times[-2])
        found = sum((b - a) * n for (a, n), b in zip(told, times[1:], strict=True))
        assert found == pytest.approx(seconds, abs=1e-5)


def test_minibatches_follow_each_other_and_devices_and_lanes_have_names(timeline):
    events = [*perfetto.events(timeline, [2, 4])]
    mine = [e for e in events if e["ph"] == "X" and e["cat"] == "minibatch" and e["pid"] == 0]
    assert [e["name"] for e in mine] == ["minibatch 2", "minibatch 4"]
    assert [e["ts"] for e in mine] == [0, pytest.approx(metrics.usage(timeline).makespan[2] * 1e6)]
    named = {kind: {(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"] == f"{kind}_name"}
             for kind in ("process", "thread")}  # fmt: skip
    assert {pid for pid, *_ in named["process"]} == set(range(timeline.about.devices + 1))
    assert {lane[1:] for lane in named["thread"]} == {(0, "compute"), (2, "gather"), (3, "push")}


def test_the_same_timeline_gives_the_same_bytes_whatever_the_name(timeline, tmp_path):
    paths = [tmp_path / name for name in ("a.json.gz", "b.json.gz", "plain.json")]
    counts = {perfetto.write(timeline, path) for path in paths}
    assert paths[0].read_bytes() == paths[1].read_bytes()
    content = json.loads(paths[2].read_text())
    assert paths[0].read_bytes()[4:8] == bytes(4)  # gzip's time of writing
    assert json.loads(gzip.decompress(paths[0].read_bytes())) == content
    assert counts == {len(content["traceEvents"])}
    shown = {e["name"] for e in content["traceEvents"] if e["name"].startswith("minibatch")}
    assert shown == {"minibatch 0", "minibatch 1", "minibatch 2"}
    assert content["otherData"]["sync"] == "on-demand"


def test_windows(timeline):
    assert [*map(perfetto.window, ("1-3", "5"), [timeline] * 2)] == [range(1, 4), range(5, 6)]
    for text in ("", "-", "x", "2-1", "0-6", "9", "-1", "1-", "1-2-3", "1.5"):
        with pytest.raises(InputError):
            perfetto.window(text, timeline)


def arrows(timeline):
    """Pairs of the innermost slices between which each arrow of the first minibatch goes, by its name."""
    events = [*perfetto.events(timeline, [0])]
    found, ends = tracks(events), defaultdict(list)
    for e in events:
        if e["ph"] in "sf":
            at = round(e["ts"] * 1000)
            around = [s for s in found[e["pid"], e["tid"]] if s[0] <= at < s[1]]
            ends[e["id"]].append((at, e, min(around, key=lambda s: s[1] - s[0])[2]))
    return [(one[1]["name"], one, other) for one, other in ends.values()]


@given(cases())
def test_arrows_go_from_what_was_waited_for_to_what_waited(case):
    for name, (left, leaves, source), (came, reaches, target) in arrows(timeline_of(case)):
        assert (leaves["ph"], reaches["ph"]) == ("s", "f")
        assert left <= came
        assert (source["pid"] != target["pid"]) == (name == "waited for")
        if name == "waited for":
            assert target["cat"] in ("wait_inside", "wait_end")
        else:
            assert (source["cat"] == "gather") == (name == "gathered for")
            assert name == "gathered for" or target["cat"] == "push"


def test_a_collective_says_who_was_waited_for(setting):
    file = simulate(plan(setting, "lb-micro"), setting.cost.by(sync="collective"))
    waited = [source["cat"] for name, (_, _, source), _ in arrows(file) if name == "waited for"]
    assert len(waited) > 100
    assert "wait_inside" not in waited


@pytest.fixture(scope="module", params=[("lb-micro", "collective"), ("lb-mini", "on-demand")])
def run(request):
    """Between two nodes, so that transfers take time."""
    balancer, sync = request.param
    setting = ask("longalign", "qwen3-8b", gpu="h100", devices=16, minibatch=2, minibatches=3)
    return simulate(plan(setting, balancer), setting.cost.by(sync=sync))


def computed(timeline, number, device, *kinds):
    """When a device computed in a minibatch, as (from, to), by the kinds of the program's steps."""
    block, place = timeline.block_of(number)
    steps = [i for i, step in enumerate(block.program.steps) if step.kind in kinds]
    return [(block.asked[i, place, device], block.had[i, place, device]) for i in steps]


def test_our_own_reader_finds_the_same_seconds(run, tmp_path):
    profiler.write(run, tmp_path / "traces", range(3))
    for device in range(run.about.devices):
        read = read_trace(tmp_path / "traces" / f"device-{device}.json.gz")
        assert (read.device, read.devices) == (device, 16)
        assert sorted(read.steps) == [0, 1, 2]
        for number, seconds in read.steps.items():
            expected = sum(end - begin for begin, end in computed(run, number, device, "compute"))
            assert seconds == pytest.approx(expected, abs=1e-5)
        optimizers = [end - begin for n in range(3) for begin, end in computed(run, n, device, "optimizer")]
        assert read.optimizer == pytest.approx([s for s in optimizers if s > 0], abs=1e-7)


def test_a_folder_that_is_there_or_has_no_place_is_left_alone(run, tmp_path, monkeypatch):
    """Of two that write at once, the second is told."""
    (tmp_path / "there").mkdir()
    for place, numbers in (("there", range(1)), ("none/traces", range(1)), ("others", [7])):
        with pytest.raises(InputError):
            profiler.write(run, tmp_path / place, numbers)
    assert list(tmp_path.glob("**/*")) == [tmp_path / "there"]
    events = profiler.events

    def meanwhile(*args):
        monkeypatch.setattr(profiler, "events", events)
        profiler.write(run, tmp_path / "traces", range(2))
        return events(*args)

    monkeypatch.setattr(profiler, "events", meanwhile)
    with pytest.raises(InputError):
        profiler.write(run, tmp_path / "traces", range(1))
    assert {path.name for path in tmp_path.iterdir()} == {"there", "traces"}
    assert len(list((tmp_path / "traces").iterdir())) == run.about.devices


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # pandas's, which that package is older than
def test_holistic_trace_analysis_finds_our_idle_and_overlap(run, tmp_path):
    """It counts the optimizer as compute, and no time before a device's first kernel."""
    analysis = pytest.importorskip("hta.trace_analysis", reason="pip install 'odcsim[hta]'")
    profiler.write(run, tmp_path / "traces", range(3))
    read = analysis.TraceAnalysis(trace_dir=str(tmp_path / "traces"), include_last_profiler_step=True)
    times = read.get_temporal_breakdown(visualize=False).set_index("rank")
    overlap = read.get_comm_comp_overlap(visualize=False).set_index("rank")
    for device in range(run.about.devices):
        compute, moving, end = spans(run, device)
        begin = min(compute[:, 0].min(), moving[:, 0].min())
        busy, found = measure(compute), times.loc[device]
        assert found["compute_time(us)"] / 1e6 == pytest.approx(busy, rel=1e-3)
        idle = (found["idle_time(us)"] + found["non_compute_time(us)"]) / found["kernel_time(us)"]
        assert idle == pytest.approx(1 - busy / (end - begin), abs=1e-3)
        shared = measure(compute) + measure(moving) - measure(np.concatenate([compute, moving]))
        assert overlap.loc[device, "comp_comm_overlap_pctg"] == pytest.approx(100 * shared / measure(moving), abs=0.1)


def spans(timeline, device):
    """Of all minibatches one after another: when a device computed, when it moved or met, when all was done."""
    start, compute, moving = 0.0, [], []
    for number in range(3):
        block, place = timeline.block_of(number)
        for begin, end in computed(timeline, number, device, "compute", "optimizer"):
            compute.append((start + begin, start + end))
        for begin, end in computed(timeline, number, device, "gather", "push", "meeting"):
            moving.append((start + begin, start + end))
        start += float(block.had[:, place].max())
    held = (np.array([s for s in some if s[1] > s[0]]) for some in (compute, moving))
    return *held, start


def measure(spans):
    """Seconds in which any of them is."""
    total, now = 0.0, -np.inf
    for begin, end in sorted(map(tuple, spans)):
        total += max(0.0, end - max(begin, now))
        now = max(now, end)
    return total
