"""A queue that devices share: every entry is run once, whoever takes it, and gradients stay those of one process."""

from dataclasses import replace
from functools import partial

import jobs
import numpy as np
import pytest
import teams
import torch
import work
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import schedules

from odc_engine import backends
from odc_engine.cli import main
from odc_engine.devices.process import ProcessDevice
from odc_engine.devices.run_device import Recorded
from odc_engine.devices.workload import workload_of
from odc_engine.errors import EngineError
from odc_engine.runs import run
from odc_engine.runs.verify import BOUND, reference_gradients, relative_errors
from odcsim import profile, schedule, timeline
from odcsim.cost import Load
from odcsim.errors import InputError
from odcsim.program import program
from odcsim.schedule import Schedule, flattened


def queued(*counts: int, queue: int) -> Schedule:
    """One sample in each microbatch: so many of each device, and in the queue."""
    whole = teams.minibatch((*counts, queue))
    return whole.dealt(flattened(whole.devices[:-1]), flattened((whole.devices[-1],)))


UNLIKE = (queued(2, 0, 1, queue=7), queued(0, 0, 0, queue=2), queued(1, 1, 1, queue=0), queued(3, 1, 0, queue=1))


def gradients(device):
    """Of every minibatch, from the same weights."""
    found = []
    for each in device.job.schedules:
        device.gradients(each)
        found.append({name: g.clone() for name, g in device.whole_gradients().items()})
        device.publish()
    return found


def gradients_in_a_process(rank, job):
    device = ProcessDevice(job, rank)
    found = gradients(device)
    device.close()
    return [{name: g.numpy() for name, g in each.items()} for each in found] if rank == 0 else None


def check_gradients(job, found):
    for each, mine in zip(job.schedules, found, strict=True):
        errors = relative_errors({n: torch.as_tensor(g) for n, g in mine.items()}, reference_gradients(job, each))
        assert max(errors.values()) <= BOUND


@pytest.mark.by_default(2)
@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_gradients_of_drawn_schedules_equal_one_process(pools, backend, devices):
    drawn = st.lists(schedules(devices, longest=9, queued=True), min_size=1, max_size=2)

    @settings(max_examples=4, deadline=None)
    @example(UNLIKE if devices == 3 else (queued(1, queue=3), queued(0, queue=2)), "locked", "none")
    @given(drawn, st.sampled_from(["locked", "slots"]), st.sampled_from(["none", "fsdp2", "3"]))
    def law(minibatches, accumulate, prefetch):
        job = teams.job_for(*minibatches, accumulate=accumulate, prefetch=prefetch)
        if backend == "threads":
            for found in teams.on_threads(job, gradients):
                check_gradients(job, found)
        else:
            job = replace(job, backend=backends.chosen("shm"))
            check_gradients(job, pools(devices).run(gradients_in_a_process, job)[0])

    law()


def recorded(pools, backend, job):
    """The blocks of the timeline of what devices did."""
    if backend == "threads":
        every = teams.on_threads(job, teams.recorded)
    else:
        every = pools(3).run(teams.shm_records, replace(job, backend=backends.chosen(backend)))
    return [run.block_of(n, s, job, [device[n] for device in every]) for n, s in enumerate(job.schedules)]


@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_a_timeline_tells_who_ran_what(pools, backend, tmp_path):
    job = teams.job_for(*UNLIKE)
    line = run.assembled(teams.file_of(*job.schedules), job, recorded(pools, backend, job))
    timeline.write(line, tmp_path / "t.npz")
    line = timeline.read(tmp_path / "t.npz")
    for number, each in enumerate(job.schedules):
        block, place = line.block_of(number)
        assert (block.takers is None) == (not each.queue)
        ran = block.ran(job.schedules)[place]
        assert ran.microbatches == tuple(block.counts[place])
        assert sorted(ran.contents()) == sorted(each.contents())
        assert block.program.microbatches == max(ran.microbatches)
        entries = [entry for d in range(3) for entry in block.taken(place, d).values()]
        assert sorted(entries) == list(range(len(each.queue)))


def emulated(schedule, **cluster):
    job = replace(teams.job_for(schedule), emulate=True)
    cost = replace(job.cost, profile=jobs.SECONDS, cluster=replace(job.cost.cluster, **cluster))
    return replace(job, cost=cost)


@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_who_is_late_takes_less_and_a_device_may_get_nothing(pools, backend):
    """Device 0 is ten times as slow as the others, and has one microbatch as they have."""
    job = emulated(queued(1, 1, 1, queue=6), slow=((0, 10.0),))
    [block] = recorded(pools, backend, job)
    assert block.counts[0, 0] == 1
    assert block.takers.min() >= 1
    computes = [i for i, step in enumerate(block.program.steps) if step.kind == "compute"]
    took = block.had[computes] - block.asked[computes]
    ran = block.ran(job.schedules)
    promised = job.cost.durations(block.program, Load.of(job.cost.model, ran))
    rows = [block.program.steps[i].duration for i in computes]
    assert (took >= promised[rows] - 1e-6).all()


@given(schedules(3, queued=True), st.integers(0, 9), st.randoms(use_true_random=False))
def test_emulated_seconds_are_those_of_the_realised_schedule(drawn_schedule, number, random):
    """As the simulators have them: the same luck, the same slow device."""
    job = emulated(drawn_schedule, slow=((1, 1.1),), sample_noise=0.05)
    takers = [random.randrange(3) for _ in drawn_schedule.queue]
    ran = drawn_schedule.realised(takers)
    steps = program(job.cost.model.layers, max(ran.microbatches), "on-demand")
    table = job.cost.durations(steps, Load.of(job.cost.model, [ran], job.cost.luck([ran], [number], job.seed)))
    for rank in range(3):
        take = partial(next, iter([entry for entry, taker in enumerate(takers) if taker == rank]), len(takers))
        share = workload_of(job, drawn_schedule, rank, take, number, torch.device("cpu"))
        for m, microbatch in enumerate(share):
            found = [microbatch.seconds[what] for what, of in steps.durations if of == m]
            assert found == [table[row, 0, rank] for row, (_, of) in enumerate(steps.durations) if of == m]
            assert microbatch.batch.lengths == tuple(ran.lengths[i] for i in ran.devices[rank][m])
        assert len(share.own) + len(share.taken) == ran.microbatches[rank]


def test_a_queue_that_was_not_run_as_a_whole_is_an_error():
    """Should a machine's locks not hold."""
    job = teams.job_for(queued(0, 0, queue=2))
    for entries in (((0,), (0,)), ((0,), ()), ((0, 1, 2), ())):
        every = [Recorded(0.0, np.zeros(0), np.zeros(0), of) for of in entries]
        with pytest.raises(EngineError):
            run.block_of(0, job.schedules[0], job, every)


@pytest.mark.parametrize("sync", ["collective", "deferred"])
@pytest.mark.parametrize("backend", ["shm", "threads", "torch"])
def test_syncs_that_meet_refuse_a_queue(sync, backend):
    file = teams.file_of(queued(1, 1, queue=1))
    with pytest.raises(InputError):
        run.check(file, jobs.job_for(file, sync, backend))


@pytest.mark.parametrize(
    ("text", "emulate"),
    [("[slow]\n1 = 1.1\n", False), ("jitter = 0.1\n", True), ("swing = 0.1\n", True), ("[slow]\n2 = 1.1\n", True)],
)
def test_a_cluster_that_cannot_be_emulated_is_refused(tmp_path, capsys, text, emulate):
    assert command(tmp_path, text, emulate, jobs.file_of((1, 1))) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "t.npz").exists()


def command(folder, cluster, emulate, file):
    """What the command ends with, on threads."""
    schedule.write(file, folder / "s.jsonl")
    profile.write(jobs.SECONDS, folder / "profile.json")
    (folder / "cluster.toml").write_text(cluster)
    how = f"--sync on-demand --backend threads --cluster {folder}/cluster.toml -o {folder}/t.npz"
    how += f" --emulate-compute --profile {folder}/profile.json" if emulate else ""
    return main(["run", f"{folder}/s.jsonl", *how.split()])


def taken(_rank, meets):
    """By the library, between publish() and settle(), and after it; where devices meet, never."""
    with work.device(work.Case((1, 1), sync="collective" if meets else "on-demand")) as (_, comm):
        entry = None if meets else comm.take()
        if not meets:
            comm.settle()
        assert work.refused(comm.take)
        comm.memory.meet(0)
        return entry


def test_nobody_takes_where_devices_meet(pools):
    assert sorted(pools(2).run(taken, False)) == [0, 1]
    pools(2).run(taken, True)


def test_the_command_runs_a_queue_on_a_machine_with_a_slow_device(tmp_path, capfd):
    file = teams.file_of(queued(1, 1, queue=4), queued(1, 0, queue=0))
    assert command(tmp_path, "sample_noise = 0.05\n[slow]\n0 = 30.0\n", True, file) == 0, capfd.readouterr()
    line = timeline.read(tmp_path / "t.npz")
    assert line.about.digest == file.header.digest
    block, place = line.block_of(0)
    assert block.takers[place].tolist() == [1] * 4
    assert line.block_of(1)[0].takers is None
