"""What `odc_engine profile` measures: a machine's numbers come back, and a stopped call goes on where it was."""

import json
from dataclasses import astuple, replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from machine import COUNTS, INTERFERENCE, KINDS, MACHINE, SLOWDOWN, SURVEY, TERMS, TINY, run_on_machine

from odc_engine import backends
from odc_engine.backends import gpus
from odc_engine.job import check_job
from odc_engine.measuring import beside_catalog, profile
from odc_engine.measuring.beside_catalog import known, line
from odc_engine.measuring.profile import legs, measured, partial
from odc_engine.measuring.survey import KEPT, Survey
from odcsim import catalog, measurements, timeline
from odcsim import profile as profiles
from odcsim.catalog.fits import estimate
from odcsim.errors import InputError
from odcsim.recipe import Recipe
from odcsim.schedule import Header, ScheduleFile
from odcsim.support.outputs import lock


@pytest.fixture
def machine(monkeypatch):
    """The names of what it was asked to measure."""
    asked = []
    real = profile.measure

    def measure(survey, leg):
        asked.append(leg.name)
        return real(survey, leg)

    monkeypatch.setattr(profile, "run", run_on_machine)
    monkeypatch.setattr(profile, "measure", measure)
    return asked


@pytest.mark.parametrize("quick", [True, False])
def test_the_numbers_of_a_machine_come_back(machine, tmp_path, quick):
    """Compute beside others and what that costs it, transfers by themselves and beside compute, and all the rest."""
    report = measured(replace(SURVEY, quick=quick), tmp_path / "me.json")
    found = profiles.read(tmp_path / "me.json")
    assert report.good
    assert found == report.profile
    for name in (*TERMS, "kept.forward", "kept.backward"):
        ours, its = (astuple(attrgetter(name)(profile)) for profile in (found, MACHINE))
        assert ours == pytest.approx(its, rel=1e-6), name
    assert {(t.kind, t.devices) for t in found.timings} == {(t.kind, t.devices) for t in MACHINE.timings}
    for timing in found.timings:
        # Beside real compute only as many devices as compute for real are measured.
        slowdown = SLOWDOWN if timing.kind in KINDS and timing.devices == COUNTS[0] else 1.0
        its = MACHINE.timing(timing.kind, timing.devices)
        assert timing.constant == pytest.approx(its.constant, rel=1e-6), timing
        assert timing.per_byte == pytest.approx(its.per_byte, rel=1e-6), timing
        assert timing.slowdown == pytest.approx(slowdown, rel=1e-6), timing
    assert found.interference == pytest.approx(INTERFERENCE)
    assert (found.model, found.gpu, found.dtype, found.transport) == ("tiny", "cpu", "float32", "shm")
    assert (found.longest, found.most_tokens) == (512, 512)
    assert found.hardware
    assert "torch" in found.versions
    assert [path.name for path in tmp_path.iterdir()] == ["me.json"]
    assert machine == [leg.name for leg in legs(replace(SURVEY, quick=quick))]


def drifting(rng, size):
    """The machine, whose speed is another in every run."""

    def run(file, job, output, *, quiet):
        run_on_machine(file, job, output, quiet=quiet)
        one, late = timeline.read(output), 1.0 if job.emulate else float(np.exp(size * rng.standard_normal()))
        blocks = tuple(replace(block, asked=block.asked * late, had=block.had * late) for block in one.blocks)
        timeline.write(replace(one, blocks=blocks), output)
        return 0

    return run


@pytest.mark.slow
def test_the_interval_knows_that_the_machine_drifts(monkeypatch, tmp_path):
    """Of twelve profiles, each beside a spell of another time."""
    rng, inside, true = np.random.default_rng(0), [], beside_catalog.seconds(MACHINE, TINY, 512)
    monkeypatch.setattr(profile, "run", drifting(rng, 0.1))
    for number in range(12):
        found = measured(replace(SURVEY, devices=(2,), seed=number), tmp_path / "me.json").profile
        later = true * float(np.exp(0.1 * rng.standard_normal()))
        inside.append(found.low <= later / beside_catalog.seconds(found, TINY, 512) <= found.high)
        assert found.high / found.low < 3
    assert np.mean(inside) >= 0.75


def test_what_most_hangs_on_is_measured_from_the_first_leg_to_the_last():
    names = [leg.name for leg in legs(SURVEY)]
    places = [number for number, name in enumerate(names) if name.startswith("compute")]
    assert (places[0], places[-1]) == (0, len(names) - 1)
    assert min(np.diff(places)) > 1


def test_two_runs_do_not_measure_into_one_folder(machine, tmp_path):
    folder = partial(tmp_path / "me.json")
    folder.mkdir()
    with lock(folder / "lock"), pytest.raises(InputError):
        measured(SURVEY, tmp_path / "me.json")
    assert machine == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("backend", ["shm", "threads", "torch", "cuda_ipc"])
@pytest.mark.parametrize("quick", [True, False])
def test_legs_have_names_of_their_own_and_run_what_the_backend_can(backend, quick):
    survey = replace(SURVEY, backend=backends.chosen(backend), quick=quick)
    found = legs(survey)
    assert len({leg.name for leg in found}) == len(found)
    assert {leg.recipe.sync for leg in found} == set(survey.backend.profiled)
    assert {leg.file.header.devices for leg in found} == {1, *COUNTS}
    assert all(leg.emulate or leg.file.header.devices in (1, COUNTS[0]) for leg in found)
    for leg in found:
        job = profile._job(survey, leg)
        assert (job.backend.name, job.recipe, job.emulate) == (backend, leg.recipe.sharded("full"), leg.emulate)
        assert job.recipe.recomputes == (not leg.name.startswith("kept"))


def test_layers_that_keep_all_get_fewer_tokens_on_a_gpu():
    for backend, most in (("threads", 32768), ("cuda_ipc", KEPT)):
        survey = replace(SURVEY, backend=backends.chosen(backend), most=32768)
        longest = {leg.name: max(max(s.lengths) for s in leg.file.schedules) for leg in legs(survey)}
        assert (longest["compute-0"], longest["kept-0"]) == (32768, most)


@pytest.mark.usefixtures("machine")
def test_gpus_with_a_process_each_are_measured_like_any_machine(monkeypatch, tmp_path):
    """The same legs, transfers by themselves beside emulated compute, and the numbers under the GPU's name."""
    for name, value in {"is_available": True, "device_count": 2, "get_device_name": "a GPU"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(gpus, "refuse_without", lambda *_: None)
    survey = replace(SURVEY, devices=(2,), backend=backends.chosen("cuda_ipc"), recipe=Recipe(dtype="bfloat16"))
    jobs = [profile._job(survey, leg) for leg in legs(survey)]
    for job in jobs:
        check_job(ScheduleFile(Header("", "", "", 0, len(job.schedules[0].devices), 0), job.schedules), job)
    assert {job.emulate for job in jobs} == {True, False}
    assert {(job.backend.name, job.recipe.dtype) for job in jobs} == {("cuda_ipc", "bfloat16")}
    measured(survey, tmp_path / "me.json")
    found = profiles.read(tmp_path / "me.json")
    assert found.interference == pytest.approx(INTERFERENCE)
    assert (found.gpu, found.dtype, found.transport) == ("cuda", "bfloat16", "cuda_ipc")
    assert found.hardware.startswith("2 x a GPU; ")
    with pytest.raises(InputError):  # they would take turns
        measured(replace(survey, devices=(2, 3)), tmp_path / "other.json")


def stopped_after(monkeypatch, count: int, error: BaseException, survey: Survey, output: Path) -> None:
    """A call that ends by the error when so many legs are measured."""
    before, left = profile.measure, iter(range(count))

    def measure(survey, leg):
        if next(left, None) is None:
            raise error
        return before(survey, leg)

    with monkeypatch.context() as patched:
        patched.setattr(profile, "measure", measure)
        with pytest.raises(type(error)):
            measured(survey, output)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)], ids=repr)
def test_a_stopped_call_goes_on_where_it_was(machine, monkeypatch, tmp_path, error):
    output, names = tmp_path / "me.json", [leg.name for leg in legs(SURVEY)]
    stopped_after(monkeypatch, 3, error, SURVEY, output)
    assert machine == names[:3]
    assert not output.exists()
    assert sorted(path.name for path in partial(output).iterdir()) == sorted(f"{name}.json" for name in names[:3])
    resumed = measured(SURVEY, output)
    assert machine == names
    assert not partial(output).exists()
    whole = measured(SURVEY, tmp_path / "other.json")
    assert resumed.profile == whole.profile


OTHER = {
    "speed": {"quick": False},
    "limit": {"most": 600},
    "devices": {"devices": (2, 4)},
    "seed": {"seed": 1},
    "backend": {"backend": backends.chosen("threads")},
    "model": {"model": catalog.model("nano")},
    "name": {"model": replace(TINY, name="mine")},
    "sizes": {"model": replace(TINY, ffn=1024)},
}


@pytest.mark.parametrize("changes", OTHER.values(), ids=OTHER)
def test_what_was_measured_with_other_settings_is_measured_anew(machine, monkeypatch, tmp_path, changes):
    output, other = tmp_path / "me.json", replace(SURVEY, **changes)
    stopped_after(monkeypatch, 3, KeyboardInterrupt(), SURVEY, output)
    machine.clear()
    stopped_after(monkeypatch, 2, KeyboardInterrupt(), other, output)
    assert machine == [leg.name for leg in legs(other)][:2]


def test_so_is_what_other_software_measured_and_what_cannot_be_read(machine, monkeypatch, tmp_path):
    output, names = tmp_path / "me.json", [leg.name for leg in legs(SURVEY)]
    stopped_after(monkeypatch, 4, KeyboardInterrupt(), SURVEY, output)
    older, damaged, foreign, kept = (partial(output) / f"{name}.json" for name in names[:4])
    measurements.write(replace(measurements.read(older), versions="torch 1.0"), older)
    damaged.write_text("{")
    foreign.write_text(json.dumps({"mine": 1}))
    measurements.write(replace(measurements.read(kept), date="1999-12-31"), kept)  # begun before midnight
    machine.clear()
    measured(SURVEY, output)
    assert machine == [*names[:3], *names[4:]]


QWEN = catalog.model("qwen3-0.6b")
GUESS = estimate(QWEN, catalog.gpu("h200"), 1)
MEASURED = replace(GUESS, hardware="8 x NVIDIA H200", dtype="bfloat16", longest=4096)


def test_a_profile_says_how_much_slower_it_is_or_that_nothing_can_be_said():
    """The factor, whether the catalogue's own interval holds it, and another dtype."""
    for factor in (0.5, 1.0, 1.3):
        found = line(MEASURED.stretched(factor), QWEN, "cuda")
        assert f"{factor:.2f} times" in found
        assert ("inside" in found) == (GUESS.low <= factor <= GUESS.high)
        assert "float32" not in found
    assert "float32" in line(replace(MEASURED, dtype="float32"), QWEN, "cuda")
    for hardware in ("2 cores", "2 x NVIDIA GeForce RTX 4090", "32 SMs each of NVIDIA H200"):
        device = "cpu" if "cores" in hardware else "cuda"
        assert "nothing, since" in line(replace(MEASURED, hardware=hardware), QWEN, device)


KNOWN = {
    "8 x NVIDIA H100 80GB HBM3": "h100",
    "8 x NVIDIA A100-SXM4-40GB": "a100-40gb",
    "8 x NVIDIA A100-SXM4-80GB": "a100",
    "8 x NVIDIA A100 80GB PCIe": "",
    "2 x NVIDIA H100 PCIe": "",
    "8 x NVIDIA H200 NVL": "",
    "4 x NVIDIA GB200": "gb200",
    "4 x NVIDIA B200": "b200",
    "8 x AMD Instinct MI300X OAM": "mi300x",
    "1 x NVIDIA L40": "",
}


def test_a_gpu_is_known_by_what_its_driver_calls_it():
    assert {hardware: known(hardware) for hardware in KNOWN} == KNOWN
