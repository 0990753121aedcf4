"""Threads of one process: the same gradients, weights and times as any other backend."""

import json
import os
import sys
import time
import weakref
from dataclasses import replace
from functools import partial
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import given, settings
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
from odc_engine.memory.arena import CHUNK, Arena, UnitShape
from odc_engine.runs import launch_threads
from odc_engine.runs.verify import reference_gradients
from odcsim import schedule, timeline
from odcsim.profile import Polynomial

BOUND = 1e-5
SYNCS = ("collective", "deferred", "on-demand")


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
    prefetch = data.draw(st.sampled_from(["none", "fsdp2", "1", "3"]))
    assert worst(job_for(minibatch(counts, lengths), sync=sync, accumulate=accumulate, prefetch=prefetch)) <= BOUND


@pytest.mark.parametrize("sync", SYNCS)
def test_gradients_equal_one_process_without_recompute(sync):
    """Several microbatches, so that what one of them kept is gone before the next."""
    for prefetch in ("fsdp2", "3"):
        assert worst(job_for(minibatch([2] * 2), sync=sync, recompute=False, prefetch=prefetch)) <= BOUND


def test_weights_do_not_stay_gathered_where_layers_keep_activations(monkeypatch):
    held = []
    before = Performance._head

    def head(self, unit):
        held.append([len(of.untyped_storage()) for of in self._empty.values()])
        assert len(self._pass.kept) == self.parts.model.shape.layers
        before(self, unit)

    monkeypatch.setattr(Performance, "_head", head)
    on_threads(job_for(minibatch([1, 1]), recompute=False), gradients)
    assert len(held) == 2
    # Only what backward has asked for already is back.
    assert all(of.count(0) >= 1 for of in held)


def test_gradients_of_a_tied_embedding_have_both_parts():
    job = job_for(minibatch((2, 1)))
    assert worst(replace(job, cost=replace(job.cost, model=replace(job.cost.model, tied=True)))) <= BOUND


def trained_over_shm(rank, job):
    """In a process of its own: the same minibatches with FSDP2."""
    device = ProcessDevice(job, rank)
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
    theirs = pools(3).run(trained_over_shm, replace(job, backend=backends.USUAL))[0]
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
            every = memory.exchange((memory.rank, number))
            assert every == [(rank, number) for rank in range(3)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert launch_threads.run(work, 3, 20.0) == 0
    finally:
        sys.setswitchinterval(before)


def roundings(name, grads, reference):
    """How far a gradient lies from the one in fp64, in the mean over its elements."""
    return float((grads[name].double() - reference[name]).norm() / reference[name].norm())


@pytest.mark.parametrize("sync", SYNCS)
def test_bf16_is_within_its_rounding(sync):
    """Weights, compute and pushes; masters and sums stay fp32. A bf16 has 8 bits."""
    job = job_for(minibatch((2, 2)), sync=sync, dtype="bfloat16")
    reference = reference_gradients(job, job.schedules[0])
    for mine in on_threads(job, gradients):
        far = {name: roundings(name, mine, reference) for name in mine}
        assert 1e-4 < max(far.values()) < 3e-2, far


REFUSED = {
    "no gpu": (1, "threads", "backend threads needs NVIDIA GPUs, and torch "),
    "several": (
        2,
        "threads",
        "2 threads on streams of one GPU take its SMs from each other; use one device",
    ),
    "processes": (2, "shm", "--device cuda with backend shm; --backend threads"),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(("devices", "backend", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("command", ["run", "verify"])
def test_what_needs_a_gpu_is_refused_in_a_line(command, devices, backend, message, tmp_path, capsys):
    path = tmp_path / "s.jsonl"
    schedule.write(file_of(minibatch((2,) * devices)), path)
    output = ["-o", str(tmp_path / "t.npz")] if command == "run" else []
    assert main([command, str(path), "--sync", "on-demand", "--device", "cuda", "--backend", backend, *output]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


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
