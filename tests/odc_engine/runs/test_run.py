"""What devices did, as they recorded it, obeys the program; and emulated compute takes what the cost model says."""

import numpy as np
import pytest
import work
from jobs import file_of, job_for

from odc_engine.devices.process import ProcessDevice
from odc_engine.fsdp.missing_gradients import SETTER
from odc_engine.runs import run, start
from odc_engine.runs.run import assembled
from odcsim import timeline
from odcsim.errors import InputError
from odcsim.timeline import Block

SLACK = 1e-4  # seconds: two readings of the clock around one event, on a core that somebody else uses
EVEN = ((2, 2, 2), (1, 1, 1))
UNEVEN = ((3, 1, 0), (2, 2, 2))
RUNS = [
    ("on-demand", "shm", UNEVEN),
    ("collective", "shm", EVEN),
    ("deferred", "shm", EVEN),
    ("collective", "torch", EVEN),
    ("deferred", "torch", EVEN),
]


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
    found = []
    for number, schedule in enumerate(file.schedules):
        found.append(run.block_of(number, schedule, job, [device[number] for device in every]))
    return assembled(file, job, found), job


@pytest.fixture(scope="module", params=RUNS, ids=[f"{sync}-{backend}" for sync, backend, _ in RUNS])
def real(pools, request):
    return recorded(pools, *request.param, False)


@pytest.fixture(
    scope="module",
    params=[(*each, hides) for hides in ("", SETTER) for each in RUNS],
    ids=[f"{sync}-{backend}{older}" for older in ("", "-older") for sync, backend, _ in RUNS],
)
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


def test_real_steps_obey_the_program(real):
    for block in real[0].blocks:
        check_order(block)


def test_emulated_steps_obey_the_program(emulated):
    for block in emulated[0].blocks:
        check_order(block)


def test_every_present_step_was_recorded(real):
    """Compute and transfers take time. A device's missing microbatches take none."""
    for block in real[0].blocks:
        for i, step in enumerate(block.program.steps):
            took = block.had[i] - block.asked[i]
            if step.kind in ("compute", "gather", "push"):
                assert (took > 0)[block.present(i)].all(), step
            assert (took == 0)[~block.present(i)].all(), step


def test_every_emulated_push_is_made(emulated):
    """No gradient comes of waiting; transfers are made all the same."""
    for block in emulated[0].blocks:
        pushes = [i for i, step in enumerate(block.program.steps) if step.kind == "push"]
        assert pushes
        for i in pushes:
            assert (block.had[i] > block.asked[i])[block.present(i)].all()


def test_emulated_compute_takes_at_least_what_the_cost_model_says(emulated):
    found, job = emulated
    for block in found.blocks:
        load = job.cost.load([job.schedules[number] for number in block.minibatches])
        table = job.cost.durations(block.program, load)
        for i, step in enumerate(block.program.steps):
            if step.kind == "compute":
                took, predicted = block.had[i] - block.asked[i], table[step.duration]
                present = block.present(i)
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


def step_times(block: Block, kind: str, unit: int, which: int = 0):
    """The first minibatch of device 0: asked and had of the `which`-th such step of microbatch 0."""
    phases = [block.program.durations[step.duration][0] for step in block.program.steps]
    places = [
        i
        for i, step in enumerate(block.program.steps)
        if (step.unit, step.microbatch) == (unit, 0) and kind in (step.kind, phases[i])
    ]
    return block.asked[places[which], 0, 0], block.had[places[which], 0, 0]


def test_transfers_run_beside_compute(pools):
    """Before a layer has computed, the next one's gather is done, and so is the last one's push."""
    found, _ = recorded(pools, "on-demand", "shm", ((2, 2),), True)
    (block,) = found.blocks
    assert step_times(block, "gather", 2)[1] < step_times(block, "forward", 1)[1]
    assert step_times(block, "gather", 1, which=1)[1] < step_times(block, "backward", 2)[1]
    assert step_times(block, "push", 2)[1] < step_times(block, "backward", 1)[1]


def test_minibatches_of_unequal_counts_are_refused_under_collectives_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(start.launch, "_spawn", lambda *_: pytest.fail("processes were started"))
    for sync in ("collective", "deferred"):
        for backend in ("shm", "torch"):
            file = file_of((1, 1, 1), (2, 1, 0))
            with pytest.raises(InputError, match=r"minibatch 1: devices run different numbers .*\(2, 1, 0\)"):
                run.run(file, job_for(file, sync, backend), str(tmp_path / "t.npz"))


@pytest.mark.parametrize(
    ("sync", "backend", "message"),
    [("on-demand", "torch", "backend torch has collectives only"), ("on-demand", "shn", "did you mean 'shm'")],
)
def test_what_a_backend_cannot_do_is_refused(sync, backend, message):
    file = file_of((1, 1))
    with pytest.raises(InputError, match=message):
        run.check(file, job_for(file, sync, backend))


def test_the_first_minibatches_are_a_file_of_their_own():
    file = file_of((1, 1), (2, 1))
    assert run.first(file, 1).schedules == file.schedules[:1]
    assert run.first(file, 1).header.digest == run.first(file, 1).compute_digest() != file.header.digest


@pytest.mark.parametrize(("load", "told"), [(0.9, ""), (3.0, "odc_engine: the machine is busy (load 3.0 on 2 cores)")])
def test_a_busy_machine_is_told_before_its_times_are_believed(load, told, monkeypatch, capsys):
    monkeypatch.setattr(run.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(run.os, "getloadavg", lambda: (load, 9.0, 9.0))
    run.warn_if_busy()
    assert capsys.readouterr().err[: len(told) or None] == told
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):  # as one of those that torchrun starts: the first alone
        monkeypatch.setenv("RANK", rank)
        run.warn_if_busy()
        assert bool(capsys.readouterr().err) == (bool(told) and rank == "0")
