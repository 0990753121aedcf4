"""Processes that share a GPU under MPS: what each is given, and what is said of it. No GPU: torch is told of one."""

import os
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


def variables(job):
    return job.backend.env(job.use)


@pytest.fixture
def pipes(monkeypatch, tmp_path) -> Path:
    """A folder for a daemon's pipes, without a daemon, on a machine with two GPUs."""
    monkeypatch.setenv(mps.PIPES, str(tmp_path / "pipes"))
    monkeypatch.setenv(mps.SHARE, "")  # as it was comes back, whatever a test leaves
    monkeypatch.delenv(mps.SHARE)
    for name in QUEUES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(gpus, "refuse_without", lambda *_: None)
    (tmp_path / "pipes").mkdir()
    return tmp_path / "pipes"


@pytest.fixture
def daemon(pipes) -> Path:
    (pipes / "control").touch()
    return pipes


def test_a_daemon_is_up_where_its_control_pipe_is(pipes):
    env = {mps.PIPES: str(pipes)}
    assert not mps.up(env)
    (pipes / "control").touch()
    assert mps.up(env)
    assert [str(mps.control(e)) for e in ({}, {mps.PIPES: ""})] == ["/tmp/nvidia-mps/control"] * 2


@pytest.mark.parametrize(
    ("devices", "count", "part"),
    [
        (1, 1, ""),
        (2, 2, ""),
        (2, 4, ""),
        (2, 1, "50"),
        (8, 2, "25"),
        (3, 1, "33"),
        (3, 2, "50"),
        (5, 2, "33"),
        (300, 1, "1"),
        (2, 0, ""),
    ],
)
def test_processes_that_share_gpus_get_equal_parts(daemon, devices, count, part):
    assert mps.share(devices, count, {mps.PIPES: str(daemon)}) == part


@pytest.mark.usefixtures("daemon")
def test_the_user_s_word_counts(monkeypatch):
    monkeypatch.setenv(mps.SHARE, "12.5")
    assert mps.share(8, 2) == mps.share(2, 2) == "12.5"
    assert gpus.told(8) == "8 processes on 2 x a GPU, with 12.5 % of one each by MPS"


@pytest.mark.usefixtures("pipes")
def test_without_a_daemon_nothing_changes(monkeypatch):
    assert variables(job_for(FILE, backend="cuda_ipc")) == QUEUES
    assert gpus.told(4) == "4 processes that take turns on 2 x a GPU"
    for told in ("", "50"):
        monkeypatch.setenv(mps.SHARE, told)
        with pytest.raises(InputError, match="4 devices on 2 GPUs take turns"):
            gpus.check_own(4)


@pytest.mark.usefixtures("daemon")
def test_devices_with_a_share_each_may_be_timed(monkeypatch):
    for devices in (1, 2, 3, 4, 5, 199, 200):
        gpus.check_own(devices)
    with pytest.raises(InputError, match=r"202 devices on 2 GPUs with 1 % of one each overlap.*; at most 200 devices"):
        gpus.check_own(202)
    for told, good in (("25", True), ("50", True), ("51", False), ("much", False), ("0", False), ("-1", False)):
        monkeypatch.setenv(mps.SHARE, told)
        if good:
            gpus.check_own(4)
            continue
        with pytest.raises(InputError, match=f"with {told} % of one each overlap"):
            gpus.check_own(4)


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
    assert run.hardware(job_for(FILE, backend="cuda_ipc")).startswith("4 processes on 2 x a GPU, with 50 % of one each")


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


@pytest.mark.slow
def test_a_started_process_has_what_it_was_given(tmp_path):
    assert launch.run(writes_its_share, 1, 60.0, str(tmp_path / "share"), env={mps.SHARE: "17"}) == 0
    assert (tmp_path / "share").read_text() == "17"


def writes_its_share(_memory, path: str) -> None:
    assert not torch.cuda.is_initialized()
    Path(path).write_text(os.environ[mps.SHARE])


@pytest.mark.usefixtures("daemon")
def test_a_profile_s_devices_have_the_same_share_in_every_run():
    plan = Survey(catalog.model("tiny"), (2, 4), backends.chosen("cuda_ipc"), quick=True)
    plan.check_here()
    jobs = [profile._job(plan, leg) for leg in profile.legs(plan)]
    assert {len(job.schedules[0].devices) for job in jobs} == {1, 2, 4}
    assert [variables(job) for job in jobs] == [{mps.SHARE: "50"} | QUEUES] * len(jobs)
    assert profile._hardware(plan).startswith("4 processes on 2 x a GPU, with 50 % of one each by MPS; ")
    assert replace(plan, backend=backends.USUAL).use.part == ""


def line(facts: Facts) -> str:
    [finding] = environment.daemon(facts)
    assert finding.ok
    return finding.found


def test_doctor_says_how_a_daemon_is_started_and_ended_where_it_matters():
    assert environment.daemon(Facts({}, 0)) == []
    for facts in (Facts({}, 1), Facts({mps.PIPES: "p"}, 0), Facts({mps.SHARE: "50"}, 0)):
        assert "no daemon is up" in line(facts)
        assert f"'{mps.START}' starts one, '{mps.END}' ends it" in line(facts)
    assert "no p/control" in line(Facts({mps.PIPES: "p"}, 0))
    up = line(Facts({mps.PIPES: "p"}, 1, mps=True))
    assert up.startswith("a daemon is up (p/control)")
    assert (mps.START in up, mps.END in up) == (False, True)
    assert f"{mps.SHARE} is unset" in up
    assert "unset" not in line(Facts({mps.SHARE: "50"}, 1, mps=True))


@pytest.mark.parametrize(
    ("told", "up", "problem"),
    [
        ("50", True, ""),
        ("50", False, "no MPS daemon is up"),
        ("0", True, "no percentage"),
        ("x", False, "no percentage"),
    ],
)
def test_doctor_tells_what_the_share_is_set_to(told, up, problem):
    [finding] = environment.examine(Facts({mps.SHARE: told}, 1, mps=up))
    assert f"'{told}'" in finding.found
    assert problem in finding.found
    assert finding.ok == (problem == "")


def test_devices_that_share_gpus_under_mps_are_not_complained_of():
    tasks = {"RANK": "0", "WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}
    for up in (True, False):
        assert all(finding.ok for finding in environment.examine(Facts(tasks, 2, mps=up))) == up


def test_doctor_looks_for_the_daemon(daemon):
    facts = doctor._facts(doctor.NOTHING, 1)
    shown = {finding.name: finding.found for finding in [*environment.examine(facts), *environment.daemon(facts)]}
    assert str(daemon) in shown[mps.PIPES]
    assert shown["MPS"].startswith(f"a daemon is up ({daemon}/control)")
