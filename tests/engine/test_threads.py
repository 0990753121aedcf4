"""Threads of one process: the same gradients, weights and times as any other backend, and names when one fails."""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from odc_engine import launch_threads  # noqa: E402
from odc_engine.arena import CHUNK, Arena, UnitShape  # noqa: E402
from odc_engine.backends.base import COMM, MAIN  # noqa: E402
from odc_engine.cli import main  # noqa: E402
from odc_engine.errors import EngineError  # noqa: E402
from odc_engine.flat import flat_units  # noqa: E402
from odc_engine.job import job_of  # noqa: E402
from odc_engine.model import Decoder  # noqa: E402
from odc_engine.thin import Thin  # noqa: E402
from odc_engine.verify import reference_gradients, relative_errors  # noqa: E402
from odc_engine.worker import Device, as_block  # noqa: E402
from odcsim import schedule, timeline  # noqa: E402
from odcsim.profile import Polynomial  # noqa: E402
from odcsim.schedule import Header, Schedule, ScheduleFile  # noqa: E402

BOUND = 1e-5
SYNCS = ("collective", "deferred", "on-demand")


def minibatch(counts, lengths=None):
    """A minibatch with one sample in each microbatch."""
    lengths = lengths or [2 + 7 * i % 12 for i in range(sum(counts))]
    numbers = iter(range(sum(counts)))
    return Schedule(tuple(lengths), tuple(tuple((next(numbers),) for _ in range(n)) for n in counts))


def file_of(*schedules):
    header = Header("native", "nano", "", 64, len(schedules[0].devices), 0)
    return ScheduleFile(header, tuple(replace(s, samples=_ids(s, i)) for i, s in enumerate(schedules))).sealed()


def _ids(schedule, number):
    return tuple(100 * number + i for i in range(len(schedule.lengths)))


def job_for(*schedules, sync="on-demand", accumulate="locked", **options):
    return job_of(file_of(*schedules), sync=sync, backend="threads", accumulate=accumulate, **options)


def on_threads(job, work, devices=None):
    """What `work(device)` returns on each device. A failure of one is the test's."""
    devices, found = devices or len(job.schedules[0].devices), {}

    def perform(memory):
        with Thin(job, memory) as device:
            found[memory.rank] = work(device)

    assert launch_threads.run(perform, devices, 20.0) == 0
    return [found[rank] for rank in range(devices)]


def gradients(device):
    device.gradients(device.job.schedules[0])
    return device.whole_gradients()


def trained(device):
    for number in range(len(device.job.schedules)):
        device.minibatch(number)
    return device.whole_weights()


def recorded(device):
    return [device.minibatch(number) for number in range(len(device.job.schedules))]


def worst(job):
    every = on_threads(job, gradients)
    reference = reference_gradients(job, job.schedules[0])
    return max(max(relative_errors(mine, reference).values()) for mine in every)


@pytest.mark.parametrize("accumulate", ["locked", "slots"])
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_gradients_equal_one_process(devices, sync, accumulate):
    assert worst(job_for(minibatch([2] * devices), sync=sync, accumulate=accumulate)) <= BOUND


@pytest.mark.parametrize("accumulate", ["locked", "slots"])
@pytest.mark.parametrize("counts", [(4, 1, 2, 0), (0, 3), (0, 0, 1)])
def test_gradients_equal_one_process_at_uneven_counts(counts, accumulate):
    assert worst(job_for(minibatch(counts), accumulate=accumulate)) <= BOUND


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_gradients_equal_one_process_for_any_schedule(data):
    sync, accumulate = data.draw(st.sampled_from(SYNCS)), data.draw(st.sampled_from(["locked", "slots"]))
    counts = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    if sync != "on-demand":
        counts = [max(counts)] * len(counts)
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=sum(counts), max_size=sum(counts)))
    job = job_for(minibatch(counts, lengths), sync=sync, accumulate=accumulate)
    assert worst(replace(job, prefetch=data.draw(st.sampled_from(["none", "fsdp2", "1", "3"])))) <= BOUND


def test_gradients_of_a_tied_embedding_have_both_parts():
    job = job_for(minibatch((2, 1)))
    assert worst(replace(job, cost=replace(job.cost, model=replace(job.cost.model, tied=True)))) <= BOUND


def trained_over_shm(rank, job):
    """In a process of its own: the same minibatches with FSDP2."""
    device = Device(job, rank)
    for number in range(len(job.schedules)):
        device.minibatch(number)
    found = {name: p.full_tensor() for name, p in device.model.named_parameters()}
    device.meet()
    device.close()
    return {name: value.detach().numpy() for name, value in found.items()} if rank == 0 else None


@pytest.mark.parametrize("sync", SYNCS)
def test_weights_after_steps_equal_those_of_fsdp_over_shm(sync, pools):
    counts = (3, 1, 2) if sync == "on-demand" else (2, 2, 2)
    job = job_for(*[minibatch(counts)] * 6, sync=sync)
    theirs = pools(3).run(trained_over_shm, replace(job, backend="shm"))[0]
    before = dict(Decoder(job.cost.model, seed=job.seed).named_parameters())
    for mine in on_threads(job, trained):
        assert mine.keys() == theirs.keys()
        for name, weight in mine.items():
            assert np.abs(weight.numpy() - theirs[name]).max() <= BOUND, name
            assert not weight.equal(before[name])


def test_slots_give_the_same_bits_in_every_run():
    job = job_for(*[minibatch((3, 1, 2, 2))] * 3, accumulate="slots")
    first, *others = (on_threads(job, trained)[0] for _ in range(3))
    for other in others:
        assert all(weight.equal(other[name]) for name, weight in first.items())


def test_padding_stays_zero():
    job = job_for(*[minibatch((1, 1, 1))] * 3)
    units = flat_units(Decoder(job.cost.model, device="meta"), 3)
    assert any(unit.padding for unit in units)
    shards = on_threads(job, lambda device: (trained(device), device.shards))[2][1]
    for unit, shard in zip(units, shards, strict=True):
        assert not shard.detach()[shard.numel() - unit.padding :].any()
        assert shard.detach().any()


@pytest.mark.parametrize(("counts", "emulate"), [((0, 0), False), ((1, 2), True)])
def test_weights_stay_where_nobody_computes(counts, emulate):
    job = job_for(minibatch(counts), emulate=emulate, gpu="a100")
    before = dict(Decoder(job.cost.model, seed=job.seed).named_parameters())
    assert all(weight.equal(before[name]) for name, weight in on_threads(job, trained)[0].items())


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("sync", SYNCS)
def test_times_conform_to_the_program(sync, emulate):
    counts = (3, 0, 1) if sync == "on-demand" else (2, 2, 2)
    job = job_for(minibatch(counts), minibatch(counts), sync=sync, emulate=emulate, gpu="a100")
    program = job.program_of(job.schedules[0])
    before = program.previous_in_lane()
    for every in zip(*on_threads(job, recorded), strict=True):
        asked, had = as_block(list(every))
        assert np.isfinite(asked).all()
        assert (had >= asked).all()
        for i, step in enumerate(program.steps):
            here = step.microbatch < np.array(counts)
            for needed in (*step.after, *([before[i]] if before[i] >= 0 else [])):
                assert (asked[i] >= had[needed])[here].all(), (i, needed)
            if step.meets:
                assert (had[i] >= asked[i].max()).all(), i


def test_transfers_run_beside_compute():
    """Of a layer's transfers every second one is hidden: a gather by the layer before, a push by the layer after."""
    job = job_for(minibatch((2, 1)), emulate=True, gpu="a100")
    layer = Polynomial(0.02)
    job = replace(job, cost=replace(job.cost, profile=replace(job.cost.profile, forward=layer, backward=layer)))

    def slowed(device):
        for name in ("gather", "push"):
            setattr(device.parts.arena, name, partial(later, getattr(device.parts.arena, name)))
        return device.minibatch(0)

    steps, record = job.program_of(job.schedules[0]).steps, on_threads(job, slowed)[0]
    spans = [(step, record.asked[i], record.had[i]) for i, step in enumerate(steps)]
    computes = [(asked, had) for step, asked, had in spans if step.kind == "compute" and step.unit > 0]
    assert min(had - asked for asked, had in computes) >= layer.constant
    for kind in ("gather", "push"):
        moved = [(asked, had) for step, asked, had in spans if step.kind == kind and step.unit > 0]
        hidden = [m for m in moved if any(min(m[1], had) - max(m[0], asked) > 0.002 for asked, had in computes)]
        assert len(hidden) >= len(moved) // 2


def later(move, *args):
    time.sleep(0.005)
    move(*args)


class Broken(RuntimeError):
    pass


def fails(where):
    """A minibatch in which device 1 fails: in compute, in a push, or holding a lock."""

    def perform(memory, job):
        with Thin(job, memory) as device:
            if memory.rank == 1:
                WAYS[where](device)
            device.minibatch(0)

    return perform


def in_compute(device):
    device.parts.model.layers[1].forward = raising


def raising(*_args):
    raise Broken("out of luck")


def in_a_push(device):
    layer = device.parts.model.layers[1]
    layer.forward = lambda x, place, compute=layer.forward: compute(x, place) * float("nan")


def holding_a_lock(device):
    def push(*_):
        with device.memory.lock(0, 0, 64):
            raising()

    device.parts.arena.push = push


WAYS = {"compute": in_compute, "push": in_a_push, "lock": holding_a_lock}


@pytest.mark.parametrize("sync", ["collective", "on-demand"])
@pytest.mark.parametrize("where", WAYS)
def test_a_failing_device_ends_the_others_at_once_with_its_name(where, sync, capfd):
    job = job_for(minibatch((2, 2, 2)), sync=sync)
    start = time.perf_counter()
    assert launch_threads.run(fails(where), 3, 60.0, job) == 1
    assert time.perf_counter() - start < 5
    told = {line for line in capfd.readouterr().err.splitlines() if line.startswith("odc_engine: error: device ")}
    for rank in (0, 2):
        mine = [line for line in told if line.startswith(f"odc_engine: error: device {rank}: ")]
        assert len(mine) == 1
        assert "device 1" in mine[0]
    assert not any("left behind" in line for line in told)


def test_a_device_that_does_not_come_is_named(capfd):
    def work(memory):
        memory.meet(MAIN)
        if memory.rank == 2:
            time.sleep(1)
        memory.meet(COMM)

    assert launch_threads.run(work, 3, 0.2) == 1
    told = capfd.readouterr().err
    for rank in (0, 1):
        assert f"device {rank}: device 2 did not come to a meeting within 0.2 s" in told


def test_the_holder_of_a_lock_is_named(capfd):
    def work(memory):
        with memory.lock(0, 64, 128) if memory.rank == 1 else nullcontext():
            memory.meet(MAIN)
            if memory.rank == 0:
                with memory.lock(0, 64, 128):
                    raise AssertionError
            time.sleep(0.5)

    assert launch_threads.run(work, 2, 0.2) == 1
    assert "device 0: device 1 held a lock for 0.2 s" in capfd.readouterr().err


def test_a_device_that_never_ends_is_left_behind(capfd, monkeypatch):
    monkeypatch.setattr(launch_threads, "GRACE", 0.2)
    never = Event()

    def work(memory):
        if memory.rank == 0:
            raise EngineError("gave up")
        never.wait()

    assert launch_threads.run(work, 2, 60.0) == 1
    assert "device 1 still runs and is left behind" in capfd.readouterr().err
    never.set()


def test_one_left_behind_does_not_spoil_the_end_of_the_process():
    """It is inside torch, without Python's lock, most of the time: what ends there with the interpreter aborts."""
    script = """if True:
        import sys, torch
        from odc_engine import launch_threads
        def work(memory):
            if memory.rank == 0:
                raise launch_threads.EngineError("gave up")
            while True:
                torch.ones(300, 300) @ torch.ones(300, 300)
        launch_threads.GRACE = 0.1
        sys.exit(launch_threads.run(work, 3, 60.0))"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "device 2 still runs" in ended.stderr
    assert "terminate" not in ended.stderr


def test_pushes_at_once_add_up():
    devices, pushes, size = 4, 12, CHUNK // 4 + 7

    def work(memory):
        arena = Arena(memory, [UnitShape("one", 1, size, torch.float32)], "locked")
        for _ in range(pushes):
            arena.push(0, torch.full((devices * size,), float(memory.rank + 1)))
        memory.meet(MAIN)
        found[memory.rank] = arena.gradients(0)

    found = {}
    assert launch_threads.run(work, devices, 20.0) == 0
    for total in found.values():
        assert (total == pushes * sum(range(1, devices + 1))).all()


def test_nobody_sees_what_a_faster_one_brings_next():
    def work(memory):
        for number in range(300):
            every = memory.exchange((memory.rank, number))
            assert every == [(rank, number) for rank in range(3)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert launch_threads.run(work, 3, 20.0) == 0
    finally:
        sys.setswitchinterval(before)


def test_the_command_writes_a_timeline(tmp_path, capfd):
    path, out = tmp_path / "s.jsonl", tmp_path / "t.npz"
    file = schedule.write(file_of(minibatch((2, 1)), minibatch((1, 1))), path)
    assert main(["run", str(path), "--sync", "on-demand", "--backend", "threads", "-o", str(out)]) == 0
    told = capfd.readouterr().err
    assert all(f"device {d} pid {os.getpid()}" in told and f"minibatch {d} done" in told for d in range(2))
    written = timeline.read(out)
    assert written.about.digest == file.header.digest
    assert sorted(n for block in written.blocks for n in block.minibatches.tolist()) == [0, 1]


def test_the_command_verifies(tmp_path, capfd):
    path = tmp_path / "s.jsonl"
    schedule.write(file_of(minibatch((2, 1))), path)
    assert main(["verify", str(path), "--sync", "on-demand", "--backend", "threads", "--json"]) == 0
    verdict = json.loads(capfd.readouterr().out)
    assert verdict["ok"]
    assert verdict["max_relative_error"] <= BOUND


def test_torchrun_is_refused(tmp_path, capfd, monkeypatch):
    path = tmp_path / "s.jsonl"
    schedule.write(file_of(minibatch((1, 1))), path)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["run", str(path), "--sync", "on-demand", "--backend", "threads", "-o", str(tmp_path / "t")]) == 2
    assert "without torchrun" in capfd.readouterr().err


def test_the_callers_threads_stay_as_they_were():
    torch.set_num_threads(2)
    assert launch_threads.run(lambda _: None, 2, 5.0) == 0
    assert torch.get_num_threads() == 2
