"""What validate_gpu.py makes of its steps. The steps themselves need a GPU; these are told what they found."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gpu_record as record
import pytest
import validate_gpu as gpu
from scripts import ROOT

from odc_engine.backends import cuda_ipc, nccl
from odc_engine.doctor.probes.base import Absent
from odc_engine.doctor.probes.driver import Gpu
from odcsim import profile, timeline
from odcsim.executors.simulation import Simulation, simulate
from odcsim.profile import TRANSFERS, Polynomial, Profile, Timing

KNOWN = Profile(
    record.MODEL,
    "",
    "calibrated",
    "",
    forward=Polynomial(0.0, 1e-7, 1e-12),
    backward=Polynomial(0.0, 3e-7, 3e-12),
    head=Polynomial(0.0, 1e-7),
    timings=tuple(Timing(kind, 4, 1e-4) for kind in TRANSFERS),
)
BOTH = COLLECTIVE, ON_DEMAND = record.Row("collective", "lb-micro"), record.Row("on-demand", "lb-mini")


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A machine with a GPU, whose steps are these."""
    monkeypatch.setattr(gpu, "first_gpu", lambda: Gpu("a GPU", 132, (9, 0), (13, 0), 1))
    asked = []

    def run(step, folder):
        asked.append(step.name)
        gpu.attempt(replace(step, run=ANSWERS.get(step.name, lambda _: (True, "all is well"))), folder)

    monkeypatch.setattr(gpu, "apart", run)
    return asked, tmp_path


def broken(_):
    raise ValueError("no such stream")


def absent(_):
    raise Absent("one GPU")


ANSWERS = {"test_gpu_threads": broken, "bandwidth": lambda _: (False, "too slow"), "processes": absent}


def called(folder, *options):
    return gpu.main(["--keep", str(folder / "kept"), "-o", str(folder / "page.md"), *options])


def test_a_step_that_fails_stops_no_other_and_is_done_again(here):
    asked, folder = here
    assert called(folder) == 1
    names = [step.name for step in gpu.STEPS]
    assert asked == names
    page = (folder / "page.md").read_text()
    assert page.count("**not reached**") == 2
    assert "ValueError: no such stream" in page
    assert "too slow" in page
    assert page.count("cannot be asked here") == 1
    asked.clear()
    assert called(folder) == 1
    assert asked == ["test_gpu_threads", "bandwidth", "processes"]


def test_every_test_that_needs_a_gpu_is_in_a_step():
    marked = [
        path.stem
        for path in (ROOT / "tests/odc_engine").rglob("test_*.py")
        if "pytest.mark." + "gpu" in path.read_text()
    ]
    assert sorted(gpu.TESTS) == sorted(marked)


def test_tests_that_all_skip_show_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "said", lambda _: (0, "test_one SKIPPED\n==== 5 skipped in 2.31s ===="))
    with pytest.raises(Absent, match=r"test_gpu_nccl.*: 5 skipped in 2.31s"):
        gpu.tests("test_gpu_nccl", tmp_path)


def test_a_command_that_fails_is_heard_in_full(capfd):
    code, text = gpu.said([sys.executable, "-c", "import sys; print('one'); sys.exit('two')"])
    assert (code, sorted(text.split())) == (1, ["one", "two"])
    assert sorted(capfd.readouterr().out.split()) == ["one", "two"]


def test_one_step_alone_leaves_the_others_named_as_not_run(here):
    asked, folder = here
    assert called(folder, "--only", "machine") == 1
    assert asked == ["machine"]
    assert (folder / "page.md").read_text().count("not run") == len(gpu.STEPS) - 1


def test_all_is_well_where_every_step_is(here, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ANSWERS", {"processes": absent})
    assert called(here[1]) == 0


def test_a_step_that_ends_its_process_or_hangs_says_so(tmp_path, monkeypatch):
    step = gpu.Step("machine", "?", 0.5, broken)
    for command, told in (("import time; time.sleep(9)", "no end within 0.5 s"), ("exit(7)", "exit status 7")):
        ended = gpu.ended
        monkeypatch.setattr(gpu, "ended", lambda _, *rest, c=command, e=ended: e([sys.executable, "-c", c], *rest))
        gpu.apart(replace(step, limit=0.5 if "sleep" in command else 20.0), tmp_path)
        monkeypatch.setattr(gpu, "ended", ended)
        result = gpu.kept(tmp_path)["machine"]
        assert not result.good
        assert told in result.text


@pytest.mark.parametrize(("count", "asked"), [(1, None), (2, "2"), (16, "8")])
def test_what_needs_several_gpus_asks_for_as_many_as_a_node_has(count, asked, monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr(gpu, "said", lambda command: commands.append(command) or (0, "rates"))
    step = next(step for step in gpu.STEPS if step.name == "exchange")
    gpu.attempt(step, tmp_path)
    assert gpu.kept(tmp_path)["exchange"].good is (None if asked is None else True)
    assert [command[-1] for command in commands] == ([asked] if asked else [])


def test_devices_with_a_gpu_each_run_the_same_samples_over_both_transports(monkeypatch, tmp_path):
    """Each predicted from its own transport's profile."""
    ran = []
    for name, slower in (("processes", 1.0), ("nccl", 2.0)):
        timings = tuple(replace(timing, constant=slower * timing.constant) for timing in KNOWN.timings)
        profile.write(replace(KNOWN, timings=timings), tmp_path / f"{name}.json")

    def run(file, job, output, *, quiet):
        ran.append((job.recipe.sync, job.backend, [s.lengths for s in file.schedules], quiet))
        timeline.write(simulate(file, Simulation(job.cost)), output)
        return 0

    monkeypatch.setattr("odc_engine.runs.run.run", run)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    good, text = gpu.rivals(tmp_path)
    assert good
    assert text.count("+0.0%") == 3
    rows = [("collective", cuda_ipc.ROW), ("on-demand", cuda_ipc.ROW), ("collective", nccl.ROW)]
    assert [told[:2] for told in ran] == rows * record.REPEATS
    assert all(told[2:] == (ran[0][2], True) for told in ran)
    assert {len(lengths) for lengths in ran[0][2]} == {2 * record.MINIBATCH}
    assert len({path.name for path in tmp_path.glob("*.npz")}) == len(ran)


def test_limits_keep_a_step_under_ten_minutes():
    assert all(step.limit < 600 for step in gpu.STEPS)


def test_without_a_gpu_it_says_so_in_a_line_and_leaves_nothing(monkeypatch, tmp_path, capsys):
    def nothing():
        raise Absent("no GPU: the driver sees none")

    monkeypatch.setattr(gpu, "first_gpu", nothing)
    assert called(tmp_path) == 3
    assert capsys.readouterr().err == "validate-gpu: no GPU: the driver sees none\n"
    assert not list(tmp_path.iterdir())


def test_gathers_and_slots_are_held_to_the_copy_from_16_mb_on():
    def rates(share):
        return {"copy": 4e12, "gather": share * 4e12, "write": 4e12, "add": 1e12}

    assert record.moved({1 << 20: rates(0.1), 16 << 20: rates(0.86)})[0]
    good, text = record.moved({1 << 20: rates(0.1), 16 << 20: rates(0.84)})
    assert not good
    assert "gather of 16 MB: 84% of the copy" in text
    assert "1000 (25%)" in text


@pytest.fixture(scope="module")
def simulated():
    cost = record.cost_of(KNOWN)
    files = record.planned(cost, "longalign", BOTH)
    return files, {row: record.predicted(cost, row, file) for row, file in files.items()}


def test_both_run_the_same_samples_that_fit(simulated):
    files, _ = simulated
    one, other = (files[row].schedules for row in BOTH)
    assert [s.lengths for s in one] == [s.lengths for s in other]
    assert len(one) == record.MINIBATCHES
    assert max(max(s.lengths) for s in one) <= record.LONGEST


def test_prediction_and_measurement_stand_side_by_side(simulated):
    _, lines = simulated
    good, text = record.compared(lines, {row: [line, line] for row, line in lines.items()})
    assert good
    assert text.count("+0.0%") == 2
    assert "on-demand + lb-mini" in text
    other = {COLLECTIVE: [lines[ON_DEMAND]], ON_DEMAND: [lines[COLLECTIVE]]}
    assert not record.compared(lines, other)[0]


@pytest.mark.parametrize("factor", [0.1, 2.0])
def test_on_demand_is_held_against_each_rival(simulated, factor):
    """One rival comes as predicted; what the other takes decides."""
    _, lines = simulated
    nccl = replace(COLLECTIVE, backend="torch")
    told = lines | {nccl: lines[COLLECTIVE]}
    measured = {row: [line] for row, line in told.items()} | {nccl: [stretched(lines[COLLECTIVE], factor)]}
    good, text = record.compared(told, measured)
    assert good == (factor > 1)
    assert [line.partition("as fast as ")[2].split(" predicted")[0][:28] for line in text.splitlines()[-3::2]] == [
        "collective + lb-micro, threa",
        "collective + lb-micro, nccl,",
    ]


def test_pushes_lie_beside_backward_but_for_the_last_of_a_microbatch(simulated):
    """In a simulation where a push takes less than a layer's backward, all but the first layer's are hidden whole."""
    good, text = record.overlap([simulated[1][ON_DEMAND]])
    assert good
    share = float(text.split("%")[0])
    assert 95 < share <= 100
    shifted = [replace(b, asked=b.asked + 1e6 * push(b), had=b.had + 1e6 * push(b)) for b in blocks(simulated)]
    assert not record.overlap([replace(simulated[1][ON_DEMAND], blocks=tuple(shifted))])[0]


def blocks(simulated):
    return simulated[1][ON_DEMAND].blocks


def push(block):
    import numpy as np

    return np.array([float(step.kind == "push") for step in block.program.steps])[:, None, None]


def stretched(line, factor):
    return replace(line, blocks=tuple(replace(b, asked=factor * b.asked, had=factor * b.had) for b in line.blocks))


def test_overhead_is_held_to_two_percent(simulated):
    _, lines = simulated

    def slower(factor):
        line = lines[COLLECTIVE]
        return {COLLECTIVE: [line], ON_DEMAND: [stretched(line, factor)]}

    assert record.uniform(lines, slower(1.015))[0]
    assert not record.uniform(lines, slower(1.025))[0]


@pytest.mark.slow
def test_the_command_is_there():
    script = Path(gpu.__file__)
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True)
    assert "--only STEP" in done.stdout
