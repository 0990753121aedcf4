"""Processes that share a GPU under MPS: what each is given, and what is said of it. No GPU: torch is told of one."""

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from jobs import file_of, job_for

from odc_engine import backends
from odc_engine.backends import gpus
from odc_engine.doctor import abilities as doctor
from odc_engine.doctor import environment
from odc_engine.doctor.environment import Facts
from odc_engine.measuring import profile
from odc_engine.measuring.survey import Survey
from odc_engine.places import mps
from odc_engine.places.queues import QUEUES
from odc_engine.runs import launch, run, verify
from odcsim import catalog
from odcsim.errors import InputError

FILE = file_of((8, 8, 8, 8))


@pytest.fixture
def control(monkeypatch, tmp_path) -> Path:
    """Where a daemon's pipe would be, on a machine with two GPUs."""
    monkeypatch.setenv(mps.PIPES, str(tmp_path))
    for name in (mps.SHARE, *QUEUES):
        monkeypatch.setenv(name, "")  # as it was comes back, whatever a test leaves
        monkeypatch.delenv(name)
    for name, value in (("is_available", True), ("device_count", 2), ("get_device_name", "a GPU")):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(gpus, "refuse_without", lambda *_: None)
    return tmp_path / "control"


@pytest.fixture
def daemon(control):
    control.touch()


SHARES = {(1, 1): "", (2, 2): "", (2, 4): "", (2, 1): "50", (8, 2): "25", (3, 1): "33", (3, 2): "50", (5, 2): "33",
          (300, 1): "1", (2, 0): ""}  # fmt: skip


def test_processes_that_share_gpus_get_equal_parts_unless_the_user_says(control, monkeypatch):
    env = {mps.PIPES: str(control.parent)}
    assert not mps.up(env)
    job = job_for(FILE, backend="cuda_ipc")
    assert job.backend.env(job.use) == QUEUES
    assert "take turns" in gpus.told(4)
    assert "take turns" not in gpus.told(2)
    control.touch()
    assert [str(mps.control(e)) for e in ({}, {mps.PIPES: ""})] == ["/tmp/nvidia-mps/control"] * 2
    assert {case: mps.share(*case, env) for case in SHARES} == SHARES
    monkeypatch.setenv(mps.SHARE, "12.5")
    assert mps.share(8, 2) == mps.share(2, 2) == "12.5"
    assert "12.5 %" in gpus.told(8)


# Up, devices, what the user says of a share, and whether what they do may be timed.
TIMED = [*((True, devices, "", True) for devices in (1, 2, 3, 4, 5, 199, 200)), (True, 202, "", False),
         (True, 4, "25", True), (True, 4, "50", True), (True, 4, "51", False), (True, 4, "much", False),
         (True, 4, "0", False), (True, 4, "-1", False), (False, 4, "", False), (False, 4, "50", False)]  # fmt: skip


@pytest.mark.parametrize(("up", "devices", "told", "good"), TIMED)
def test_devices_with_a_share_each_may_be_timed(control, monkeypatch, up, devices, told, good):
    if up:
        control.touch()
    monkeypatch.setenv(mps.SHARE, told)
    with nullcontext() if good else pytest.raises(InputError, match="at most 200 devices" if up else None):
        gpus.check_own(devices)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("command", [run.run, verify.verify])
def test_processes_are_started_with_their_share(monkeypatch, command):
    given = []
    monkeypatch.setattr(launch, "_spawn", lambda *args: given.append(args[-1]) or 0)
    shown = ("unused.npz",) if command is run.run else (False,)
    for backend in ("cuda_ipc", "shm"):
        assert command(FILE, job_for(FILE, backend=backend), *shown) == 0
    assert given == [{mps.SHARE: "50"} | QUEUES, {}]
    assert mps.SHARE not in os.environ  # the next run may have other devices


@pytest.mark.usefixtures("daemon")
def test_a_process_of_torchrun_s_has_its_share_before_it_touches_cuda(monkeypatch):
    """Two of four devices are on this machine's one GPU."""
    seen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append(os.environ.get(mps.SHARE)) or True)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    run.check(FILE, job_for(FILE, backend="cuda_ipc", accumulate="slots"))
    assert seen == ["50"]
    assert os.environ.items() >= QUEUES.items()


def test_a_process_that_starts_takes_it_before_all_else(monkeypatch):
    monkeypatch.setattr(launch.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *_: 0))  # tests go on
    monkeypatch.setattr(launch, "_device", lambda *_, **__: int(os.environ[mps.SHARE]))
    monkeypatch.setenv(mps.SHARE, "0")
    with pytest.raises(SystemExit) as ended:
        launch._entry(print, 0, 1, launch.Rendezvous(), 1.0, (), {mps.SHARE: "17"}, Mock(), os.getppid())
    assert ended.value.code == 17


@pytest.mark.usefixtures("daemon")
def test_a_profile_s_devices_have_the_same_share_in_every_run():
    plan = Survey(catalog.model("tiny"), (2, 4), backends.chosen("cuda_ipc"), quick=True)
    plan.check_here()
    jobs = [profile._job(plan, leg) for leg in profile.legs(plan)]
    assert {len(job.schedules[0].devices) for job in jobs} == {1, 2, 4}
    assert [job.backend.env(job.use) for job in jobs] == [{mps.SHARE: "50"} | QUEUES] * len(jobs)
    assert "50 % of one each by MPS" in profile._hardware(plan)
    assert replace(plan, backend=backends.USUAL).use.part == ""


# The environment, GPUs and whether a daemon is up: whether the doctor says how one is started.
DAEMONS = [({}, 1, False, True), ({mps.PIPES: "p"}, 0, False, True), ({mps.SHARE: "50"}, 0, False, True),
           ({mps.PIPES: "p"}, 1, True, False)]  # fmt: skip


@pytest.mark.usefixtures("daemon")
def test_doctor_says_how_a_daemon_is_started_and_ended_where_it_matters_and_what_the_share_is(control):
    assert environment.daemon(Facts({}, 0)) == []
    for env, count, up, starts in DAEMONS:
        [finding] = environment.daemon(Facts(env, count, mps=up))
        assert finding.ok
        assert (mps.START in finding.found, mps.END in finding.found) == (starts, True)
        assert ("unset" in finding.found) == (mps.SHARE not in env)
    facts = doctor._facts(doctor.NOTHING, 1)
    shown = {finding.name: finding.found for finding in [*environment.examine(facts), *environment.daemon(facts)]}
    assert str(control.parent) in shown[mps.PIPES]
    assert str(control) in shown["MPS"]
    for told, up in (("50", True), ("50", False), ("0", True), ("x", False)):
        [finding] = environment.examine(Facts({mps.SHARE: told}, 1, mps=up))
        assert f"'{told}'" in finding.found
        assert finding.ok == ((told, up) == ("50", True))
    tasks = {"RANK": "0", "WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}  # devices that share GPUs
    for up in (True, False):
        assert all(finding.ok for finding in environment.examine(Facts(tasks, 2, mps=up))) == up
