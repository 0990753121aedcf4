"""When one thread fails, stops or never ends: the others name it, and the process ends in order."""

import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from threading import Event

import pytest
import torch
from teams import file_of, job_for, minibatch

from odc_engine.backends.base import COMM, MAIN
from odc_engine.cli import main
from odc_engine.devices.thread import ThreadDevice
from odc_engine.errors import EngineError
from odc_engine.runs import launch_threads
from odcsim import schedule


class Broken(RuntimeError):
    pass


def fails(where):
    """A minibatch in which device 1 fails: in compute, in a push, or holding a lock."""

    def perform(memory, job):
        with ThreadDevice(job, memory) as device:
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


def test_a_device_that_fails_with_an_entry_in_hand_is_named(capfd):
    whole = minibatch((1, 0, 1, 4))
    job = job_for(replace(whole, devices=whole.devices[:-1], queue=whole.devices[-1]))

    def perform(memory, job):
        with ThreadDevice(job, memory) as device:
            if memory.rank == 1:
                take = memory.take
                memory.take = lambda: (take(), raising())
            device.minibatch(0)

    start = time.perf_counter()
    assert launch_threads.run(perform, 3, 60.0, job) == 1
    assert time.perf_counter() - start < 5
    told = capfd.readouterr().err
    for rank in (0, 2):
        assert f"error: device {rank}: device 1 failed (Broken: out of luck)" in told


def test_a_device_that_does_not_come_is_named(capfd):
    def work(memory):
        memory.meet(MAIN)
        if memory.rank == 2:
            time.sleep(1)
        memory.meet(COMM)

    assert launch_threads.run(work, 3, 0.2) == 1
    told = capfd.readouterr().err
    for rank in (0, 1):
        assert f"device {rank}: device 2 did not synchronize within 0.2 s" in told


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


def test_a_device_stuck_when_others_have_ended_is_left_behind(capfd, monkeypatch):
    monkeypatch.setattr(launch_threads, "GRACE", 0.1)
    monkeypatch.setattr(launch_threads, "END", 0.1)
    never = Event()
    assert launch_threads.run(lambda memory: memory.rank and never.wait(), 2, 0.1) == 1
    assert capfd.readouterr().err == "odc_engine: error: device 1 still runs and is left behind\n"
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
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "device 2 still runs" in ended.stderr
    assert "terminate" not in ended.stderr


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
