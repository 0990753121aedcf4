"""What devices did, as they recorded it, obeys the program; and emulated compute takes what the cost model says."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import work
from jobs import file_of, job_for
from teams import on_threads

from odc_engine.devices.process import ProcessDevice
from odc_engine.fsdp.before_213 import SETTER
from odc_engine.runs import run, start
from odc_engine.runs.run import assembled
from odcsim import timeline
from odcsim.cost import Load
from odcsim.errors import InputError
from odcsim.timeline import Block

SLACK = 1e-4  # seconds: two readings of the clock around one event, on a core that somebody else uses
EVEN = ((2, 2, 2), (1, 1, 1))
UNEVEN = ((3, 1, 0), (2, 2, 2))
RUNS = [("on-demand", "shm", UNEVEN)]
RUNS += [(sync, backend, EVEN) for backend in ("shm", "torch") for sync in ("collective", "deferred")]
OLDER = [(*each, hides) for hides in ("", SETTER) for each in RUNS]


def records(rank, job, hides):
    with work.hidden(hides):
        device = ProcessDevice(job, rank)
        try:
            return [device.minibatch(number) for number in range(len(job.schedules))]
        finally:
            device.meet()
            device.close()


def recorded(pools, sync, backend, minibatches, emulate, hides=""):
    file = file_of(*minibatches)
    job = job_for(file, sync, backend, emulate=emulate)
    every = pools(file.header.devices).run(records, job, hides)
    found = [run.block_of(n, s, job, [device[n] for device in every]) for n, s in enumerate(file.schedules)]
    return assembled(file, job, found), job


@pytest.fixture(scope="module", params=RUNS, ids=lambda each: f"{each[0]}-{each[1]}")
def real(pools, request):
    return recorded(pools, *request.param, False)


@pytest.fixture(scope="module", params=OLDER, ids=lambda each: f"{each[0]}-{each[1]}{'-older' * bool(each[3])}")
def emulated(pools, request):
    *how, hides = request.param
    return recorded(pools, *how, True, hides)


def check_order(block: Block) -> None:
    """Every step that really ran: after what it names, after its lane's last, and for a meeting after everybody."""
    before = block.program.previous_in_lane()
    for i, step in enumerate(block.program.steps):
        present = block.present(i)
        assert (block.had[i] >= block.asked[i]).all(), step
        for need in (*step.after, *([before[i]] if before[i] >= 0 else [])):
            ordered = block.asked[i] >= block.had[need] - SLACK
            assert ordered[present].all(), f"{step} began before {block.program.steps[need]} had ended"
        if step.meets:
            last = np.where(present, block.asked[i], -np.inf).max(axis=1, keepdims=True)
            assert (block.had[i] >= last - SLACK)[present].all(), f"{step} did not wait for everybody"


def test_every_present_step_was_recorded_in_order(real):
    """Compute and transfers take time. A device's missing microbatches take none."""
    for block in real[0].blocks:
        check_order(block)
        for i, step in enumerate(block.program.steps):
            took = block.had[i] - block.asked[i]
            if step.kind in ("compute", "gather", "push"):
                assert (took > 0)[block.present(i)].all(), step
            assert (took == 0)[~block.present(i)].all(), step


def test_emulated_steps_are_in_order_every_push_is_made_and_compute_takes_what_the_cost_model_says(emulated):
    """At least. No gradient comes of waiting; transfers are made all the same."""
    found, job = emulated
    for block in found.blocks:
        check_order(block)
        load = Load.of(job.cost.model, [job.schedules[n] for n in block.minibatches])
        table = job.cost.durations(block.program, load)
        assert {"push", "compute"} <= {step.kind for step in block.program.steps}
        for i, step in enumerate(block.program.steps):
            took, present = block.had[i] - block.asked[i], block.present(i)
            if step.kind == "push":
                assert (took > 0)[present].all()
            if step.kind == "compute":
                predicted = table[step.duration]
                assert (took >= predicted - 1e-6)[present].all(), step
                assert predicted[present].min() >= 0.001


def test_a_recorded_timeline_is_one_of_odcsims(real, tmp_path):
    found, job = real
    timeline.write(found, tmp_path / "t.npz")
    again = timeline.read(tmp_path / "t.npz")
    assert again.about == found.about
    assert (again.about.executor, again.about.recipe.sync, again.about.emulated) == ("engine", job.recipe.sync, False)
    assert sorted(n for block in again.blocks for n in block.minibatches) == [0, 1]
    assert f"backend {job.backend.name}" in again.about.hardware


def test_transfers_run_beside_compute(pools):
    """Before a layer has computed, the next one's gather is done, and so is the last one's push."""
    (block,) = recorded(pools, "on-demand", "shm", ((2, 2),), True)[0].blocks

    def ended(kind: str, unit: int, which: int = 0) -> float:
        """Of the first minibatch of device 0, and its microbatch 0: the `which`-th such step."""
        steps = [(step, block.program.durations[step.duration][0]) for step in block.program.steps]
        places = [
            i for i, (s, phase) in enumerate(steps) if (s.unit, s.microbatch) == (unit, 0) and kind in (s.kind, phase)
        ]
        return block.had[places[which], 0, 0]

    assert ended("gather", 2) < ended("forward", 1)
    assert ended("gather", 1, which=1) < ended("backward", 2)
    assert ended("push", 2) < ended("backward", 1)


def test_what_a_backend_cannot_do_is_refused_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(start.launch, "_spawn", lambda *_: pytest.fail("processes were started"))
    uneven, even = file_of((1, 1, 1), (2, 1, 0)), file_of((1, 1))
    refused = [(uneven, sync, backend) for sync in ("collective", "deferred") for backend in ("shm", "torch")]
    for file, *how in (*refused, (even, "on-demand", "torch"), (even, "on-demand", "shn")):
        with pytest.raises(InputError):
            run.run(file, job_for(file, *how), str(tmp_path / "t.npz"))


def test_the_first_minibatches_are_a_file_of_their_own():
    file = file_of((1, 1), (2, 1))
    assert run.first(file, 1).schedules == file.schedules[:1]
    some = run.first(file, 1)
    assert some == some.sealed()
    assert some.header.digest != file.header.digest


@pytest.mark.parametrize(("load", "told"), [(0.9, False), (3.0, True)])
def test_a_busy_machine_is_told_before_its_times_are_believed(load, told, monkeypatch, capsys):
    """By the first alone of those that torchrun starts."""
    monkeypatch.setattr(run.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(run.os, "getloadavg", lambda: (load, 9.0, 9.0))
    for place in ({}, {"WORLD_SIZE": "2", "RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "1"}):
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        run.warn_if_busy()
        assert bool(capsys.readouterr().err) == (told and place.get("RANK") != "1")


@pytest.mark.parametrize(("quiet", "emulate"), [(False, False), (True, False), (False, True)])
def test_a_run_whose_times_are_measured_tells_of_a_busy_machine(quiet, emulate, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run.os, "getloadavg", lambda: (1e6, 1e6, 1e6))
    monkeypatch.setattr(run, "on_devices", lambda *_: 3)
    file = file_of((1, 1))
    job = replace(job_for(file), emulate=emulate)
    assert run.run(file, job, str(tmp_path / "t.npz"), quiet=quiet) == 3
    assert ("busy" in capsys.readouterr().err) == (not quiet and not emulate)
    assert not list(tmp_path.iterdir())


SMALL = file_of((2, 1), (1, 2))


def whole(device) -> dict[str, "torch.Tensor"]:
    if isinstance(device, ProcessDevice):
        return {name: p.full_tensor().detach().clone() for name, p in device.model.named_parameters()}
    return {name: weight.clone() for name, weight in device.whole_weights().items()}


def trained(device, warm: bool) -> list[dict]:
    """Weights at the start, after warming up if that is wanted, and after each minibatch."""
    found = [whole(device)]
    if warm:
        device.warm_up(run._warm_up(2))
        found.append(whole(device))
    for number in range(len(SMALL.schedules)):
        device.minibatch(number)
        found.append(whole(device))
    return found


def on_process(rank, job, work):
    device = ProcessDevice(job, rank)
    try:
        return work(device)
    finally:
        device.meet()
        device.close()


def weights(pools, backend: str, warm: bool, *, emulate: bool = False) -> list[dict]:
    job = job_for(SMALL, "on-demand", backend, emulate=emulate, accumulate="slots")
    work = partial(trained, warm=warm)
    return (on_threads(job, work) if backend == "threads" else pools(2).run(on_process, job, work))[0]


def differing(one: dict, other: dict) -> list[str]:
    return [name for name, weight in one.items() if not torch.equal(weight, other[name])]


@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_weights_and_all_that_comes_after_are_the_same_bits(pools, backend):
    """Slots add up in one order, so two runs are equal to the bit."""
    cold, warm = (weights(pools, backend, warm) for warm in (False, True))
    assert differing(warm[0], warm[1]) == []
    for mine, its in zip(warm[1:], cold, strict=True):
        assert differing(mine, its) == []
    assert differing(cold[0], cold[-1]) == list(cold[0])  # training does change all of them


def test_an_emulated_run_is_warmed_up_by_real_work(pools):
    """Neither computes afterwards, so that nothing changes."""
    for backend in ("shm", "threads"):
        found = weights(pools, backend, True, emulate=True)
        assert all(differing(found[0], each) == [] for each in found)


def warmed(device) -> float:
    device.warm_up(device.job.schedules[0])
    return float(device.minibatch(0).had.max())


def test_a_device_alone_warms_up_and_runs_a_minibatch(pools):
    assert pools(1).run(on_process, job_for(file_of((2,))), warmed)[0] > 0
