"""Traces as torch.profiler writes them: our reader and Holistic Trace Analysis find the timeline's seconds in them."""

import numpy as np
import pytest

from odcsim.decide.asking import ask
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors.simulation import Simulation, simulate
from odcsim.fitting.kineto import read_trace
from odcsim.show.pages import profiler


@pytest.fixture(scope="module", params=[("lb-micro", "collective"), ("lb-mini", "on-demand")])
def run(request):
    """Between two nodes, so that transfers take time."""
    balancer, sync = request.param
    setting = ask("longalign", "qwen3-8b", gpu="h100", devices=16, minibatch=2, minibatches=3)
    return simulate(plan(setting, balancer), Simulation(setting.cost, sync, "analytic"))


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
