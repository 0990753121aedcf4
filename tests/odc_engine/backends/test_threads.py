"""Threads of one process: the same gradients, weights and times as any other backend; and whoever fails, stops or never
ends is named, and the process ends in order."""

import json
import os
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from threading import Event
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from teams import file_of, gradients, job_for, minibatch, on_threads, recorded, trained, worst

from odc_engine import backends
from odc_engine.backends.base import MAIN
from odc_engine.backends.threads.memory import Team
from odc_engine.cli import main
from odc_engine.decoder.model import Decoder
from odc_engine.devices.flat import flat_units
from odc_engine.devices.perform import Performance
from odc_engine.devices.process import ProcessDevice
from odc_engine.devices.run_device import as_block
from odc_engine.devices.thread import ThreadDevice
from odc_engine.errors import EngineError, PeerLost
from odc_engine.runs import launch_threads
from odc_engine.runs.verify import reference_gradients
from odcsim import schedule, timeline
from odcsim.profile import Polynomial
from odcsim.schedule import flattened

BOUND = 1e-5
SYNCS = ("collective", "deferred", "on-demand")


@settings(max_examples=24, deadline=None)
@example(counts=[4, 1, 2, 0], sync="on-demand", prefetch="3", recompute=False, accumulate="locked", tied=True)
@example(counts=[0, 3], sync="on-demand", prefetch="3", recompute=False, accumulate="slots", tied=False)
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    sync=st.sampled_from(SYNCS),
    prefetch=st.sampled_from(["none", "fsdp2", "1", "3"]),
    recompute=st.booleans(),
    accumulate=st.sampled_from(["locked", "slots"]),
    tied=st.booleans(),
)
def test_gradients_equal_one_process_for_any_schedule(counts, sync, tied, **how):
    if sync != "on-demand":
        counts = [max(counts)] * len(counts)
    job = job_for(minibatch(counts), sync=sync, **how)
    model = replace(job.cost.model, tied=tied)
    assert worst(replace(job, cost=replace(job.cost, model=model))) <= BOUND


def test_weights_do_not_stay_gathered_where_layers_keep_activations(monkeypatch):
    held, before = [], Performance._head

    def head(self, unit):
        held.append([len(of.untyped_storage()) for of in self._empty.values()])
        assert len(self._pass.kept) == self.parts.model.shape.layers
        before(self, unit)

    monkeypatch.setattr(Performance, "_head", head)
    on_threads(job_for(minibatch([1, 1]), recompute=False), gradients)
    assert len(held) == 2
    assert all(of.count(0) >= 1 for of in held)  # only what backward has asked for already is back


def trained_over_shm(rank, job):
    """In a process of its own: the same minibatches with FSDP2."""
    device = ProcessDevice(job, rank)
    for number in range(len(job.schedules)):
        device.minibatch(number)
    found = {name: p.full_tensor().detach().numpy() for name, p in device.model.named_parameters()}
    device.meet()
    device.close()
    return found


@pytest.mark.parametrize("sync", SYNCS)
def test_weights_after_steps_equal_those_of_fsdp_over_shm(sync, pools):
    counts = (3, 1, 2) if sync == "on-demand" else (2, 2, 2)
    job = job_for(*[minibatch(counts)] * 4, sync=sync)
    theirs = pools(3).run(trained_over_shm, replace(job, backend=backends.USUAL))[0]
    before = dict(Decoder(job.cost.model, seed=job.seed).named_parameters())
    for mine in on_threads(job, trained):
        assert mine.keys() == theirs.keys()
        for name, weight in mine.items():
            assert np.abs(weight.numpy() - theirs[name]).max() <= BOUND, name
            assert not weight.equal(before[name])
    idle = replace(job, schedules=(minibatch((0, 0, 0)),))  # weights stay where nobody computes
    assert all(weight.equal(before[name]) for name, weight in on_threads(idle, trained)[0].items())


def test_padding_stays_zero():
    job = job_for(*[minibatch((1, 1, 1))] * 3)
    units = flat_units(Decoder(job.cost.model, device="meta"), 3)
    assert any(unit.padding for unit in units)
    shards = on_threads(job, lambda device: (trained(device), device.shards))[2][1]
    for unit, shard in zip(units, shards, strict=True):
        assert not shard.detach()[shard.numel() - unit.padding :].any()
        assert shard.detach().any()


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
        arena = device.parts.arena
        gather, push = arena.gather, arena.push
        arena.gather = lambda *args: (time.sleep(0.005), gather(*args))
        arena.push = lambda *args: (time.sleep(0.005), push(*args))
        return device.minibatch(0)

    steps, record = job.program_of(job.schedules[0]).steps, on_threads(job, slowed)[0]
    spans = [(step, record.asked[i], record.had[i]) for i, step in enumerate(steps)]
    computes = [(asked, had) for step, asked, had in spans if step.kind == "compute" and step.unit > 0]
    assert min(had - asked for asked, had in computes) >= layer.constant
    for kind in ("gather", "push"):
        moved = [(asked, had) for step, asked, had in spans if step.kind == kind and step.unit > 0]
        hidden = [m for m in moved if any(min(m[1], had) - max(m[0], asked) > 0.002 for asked, had in computes)]
        assert len(hidden) >= len(moved) // 2


def test_what_was_brought_is_let_go_at_the_next_meeting():
    """It may be a whole model."""
    team, model = Team(1), Event()
    brought = weakref.ref(model)
    assert team.swap(0, model) == [model]
    del model
    assert brought() is not None
    team.meet(0, MAIN)
    assert brought() is None


def test_nobody_sees_what_a_faster_one_brings_next():
    def work(memory):
        for number in range(300):
            assert memory.exchange((memory.rank, number)) == [(rank, number) for rank in range(3)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert launch_threads.run(work, 3, 20.0) == 0
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("sync", SYNCS)
def test_bf16_is_within_its_rounding(sync):
    """Weights, compute and pushes; masters and sums stay fp32. A bf16 has 8 bits."""
    job = job_for(minibatch((2, 2)), sync=sync, dtype="bfloat16")
    reference = reference_gradients(job, job.schedules[0])
    for mine in on_threads(job, gradients):
        far = {n: float((mine[n].double() - reference[n]).norm() / reference[n].norm()) for n in mine}
        assert 1e-4 < max(far.values()) < 3e-2, far


def test_the_commands_run_and_verify(tmp_path, capfd):
    file = schedule.write(file_of(minibatch((2, 1)), minibatch((1, 1))), tmp_path / "s.jsonl")
    threads = [str(tmp_path / "s.jsonl"), "--sync", "on-demand", "--backend", "threads"]
    assert main(["run", *threads, "-o", str(tmp_path / "t.npz")]) == 0
    told = capfd.readouterr().err
    assert all(f"device {d} pid {os.getpid()}" in told for d in range(2))
    written = timeline.read(tmp_path / "t.npz")
    assert written.about.digest == file.header.digest
    assert sorted(n for block in written.blocks for n in block.minibatches.tolist()) == [0, 1]
    assert main(["verify", *threads, "--json"]) == 0
    verdict = json.loads(capfd.readouterr().out)
    assert (verdict["ok"], verdict["max_relative_error"] <= BOUND) == (True, True)


# Whoever fails, stops or never ends.


def broken(device, where):
    layer, take = device.parts.model.layers[1], device.memory.take
    compute, fail = layer.forward, Mock(side_effect=RuntimeError("out of luck"))

    def push(*_):
        with device.memory.lock(0, 0, 64):
            fail()

    if where == "in compute":
        layer.forward = fail
    elif where == "in a push":
        layer.forward = lambda x, place: compute(x, place) * float("nan")
    elif where == "holding a lock":
        device.parts.arena.push = push
    else:
        device.memory.take = lambda: (take(), fail())


QUEUED = "with an entry in hand"
FAILS = [(where, sync) for where in ("in compute", "in a push", "holding a lock") for sync in SYNCS[::2]]


@pytest.mark.parametrize(("where", "sync"), [*FAILS, (QUEUED, "on-demand")])
def test_a_failing_device_ends_the_others_at_once_with_its_name(where, sync, capfd):
    whole, named = minibatch((2, 2, 2)), {}
    if where == QUEUED:
        whole = minibatch((1, 0, 1, 4))
        whole = whole.dealt(flattened(whole.devices[:-1]), flattened((whole.devices[-1],)))
    job = job_for(whole, sync=sync)

    def perform(memory):
        try:
            with ThreadDevice(job, memory) as device:
                if memory.rank == 1:
                    broken(device, where)
                device.minibatch(0)
        except PeerLost as lost:
            named[memory.rank] = lost.devices
            raise

    start = time.perf_counter()
    assert launch_threads.run(perform, 3, 60.0) == 1
    assert time.perf_counter() - start < 10
    assert named == {0: [1], 2: [1]}
    told = [line[:29] for line in capfd.readouterr().err.splitlines() if line.startswith("odc_engine: error: ")]
    assert sorted(told) == [f"odc_engine: error: device {rank}: " for rank in range(3)]


@pytest.mark.parametrize("fails", [True, False])
def test_a_device_that_never_ends_is_left_behind(capfd, monkeypatch, fails):
    never = Event()

    def work(memory):
        if memory.rank:
            never.wait()
        elif fails:
            raise EngineError("gave up")

    monkeypatch.setattr(launch_threads, "GRACE", 0.1)
    monkeypatch.setattr(launch_threads, "END", 0.1)
    assert launch_threads.run(work, 2, 60.0 if fails else 0.1) == 1
    assert "device 1" in capfd.readouterr().err
    never.set()


def test_one_left_behind_does_not_spoil_the_end_of_the_process():
    """It is inside torch, without Python's lock, most of the time: what ends there with the interpreter aborts."""
    script = """if True:
        import sys, torch
        from odc_engine.runs import launch_threads
        def work(memory):
            if memory.rank == 0:
                raise launch_threads.EngineError("gave up")
            while True:
                torch.ones(300, 300) @ torch.ones(300, 300)
        launch_threads.GRACE = 0.1
        sys.exit(launch_threads.run(work, 3, 60.0))"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "device 2" in ended.stderr


def test_lanes_end_with_their_devices():
    before = set(threading.enumerate())
    on_threads(job_for(minibatch((1, 1))), gradients)
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("odc-")]
