"""The table of backends: what each takes is refused where it is not there, before anything starts; and a backend is
added by one row, as CONTRIBUTING.md says it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import jobs
import pytest
import torch
import torch.distributed as dist
import work
from scripts import ROOT
from transports import refused

from odc_engine import backends
from odc_engine.backends import cuda_ipc, gpus, nccl
from odc_engine.backends.backend import BOTH, Processes
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.cli import main
from odc_engine.doctor import abilities
from odc_engine.places.queues import queues
from odc_engine.runs import run
from odcsim import schedule, timeline
from odcsim.errors import InputError
from odcsim.recipe import Recipe

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
FILE = jobs.file_of((2, 2), (1, 1))


def refused_in_a_line(arguments, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    schedule.write(jobs.file_of((2,)), "one.jsonl")
    schedule.write(FILE, "two.jsonl")
    before = set(folder.iterdir())
    assert main(arguments.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert set(folder.iterdir()) == before
    return line


FOREIGN = ["cuda_ipc --device cpu", "threads --device cuda", "shm --device cuda"]
LINES = [f"profile --model nano -o out --backend {each}" for each in (*FOREIGN, "torch --device cuda")]
LINES += ["bandwidth --devices 2 --backend cuda_ipc"]
for command in ("run -o out", "verify"):
    LINES += [f"{command} two.jsonl --sync on-demand --backend {each}" for each in (*FOREIGN, "nvshmem --device cpu")]
    LINES += [f"{command} two.jsonl --sync collective --backend torch --device cuda"]
    LINES += [f"{command} one.jsonl --sync on-demand --backend threads --device cuda"]


@no_gpu
@pytest.mark.parametrize("line", LINES)
def test_what_takes_a_gpu_is_refused_in_a_line(line, tmp_path, capsys, monkeypatch):
    refused_in_a_line(line, tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize("missing", ["triton", "nvshmem"])
def test_without_a_library_it_is_refused(missing, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found("json"))
    line = "verify two.jsonl --sync on-demand --backend nvshmem"
    assert "pip install" in refused_in_a_line(line, tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("backend", "here", "accumulate", "sharding", "kind"),
    [
        ("nvshmem", "1", "locked", "full", InputError),  # a network cannot add
        ("tcp", "1", "locked", "full", InputError),
        ("tcp", "1", "locked", "hybrid", None),
        ("tcp", "1", "slots", "full", None),
        ("tcp", "2", "locked", "full", None),  # one machine
        ("threads", "2", "locked", "full", InputError),  # a launcher's processes would be as many runs
    ],
)
def test_under_a_launcher_backends_refuse_what_they_cannot(monkeypatch, backend, here, accumulate, sharding, kind):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": here, "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    use = replace(jobs.job_for(FILE).use, recipe=Recipe("on-demand", accumulate=accumulate, sharding=sharding))
    if kind:
        monkeypatch.setattr(gpus, "refuse_without_gpus", lambda _: pytest.fail("GPUs are looked for first"))
    with pytest.raises(kind) if kind else nullcontext():
        backends.chosen(backend).needs(use)


def as_a_library(_):
    return refused(lambda: cuda_ipc.ROW.memory(SharedMemory(timeout=30.0), torch.device("cuda", 0)))


@no_gpu
def test_as_a_library_it_is_refused_too(pools):
    assert pools(2).run(as_a_library) == ["InputError"] * 2


def test_nccl_takes_a_gpu_for_each_device(monkeypatch):
    job = replace(jobs.job_for(FILE, "collective", "torch"), backend=nccl.ROW)
    for name, value in (("is_available", True), ("device_count", 2), ("get_device_name", "a GPU")):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    run.check(FILE, job)
    assert run.hardware(job).startswith("2 x a GPU; ")
    assert (nccl.ROW.across, nccl.ROW.env(job.use)) == (True, queues(os.environ))
    assert nccl.ROW.env(replace(job.use, recipe=replace(job.use.recipe, copies="engines")))[nccl.POLICY] == nccl.NO_SM
    with pytest.raises(InputError):
        run.check(jobs.file_of((1, 1, 1)), replace(job, schedules=(jobs.minibatch(1, 1, 1),)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError):
        gpus.refuse_without_nccl(2)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    gpus.refuse_without_nccl(2)  # a launcher may show each process its GPU alone
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(InputError):
        gpus.refuse_without_nccl(2)


PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a backend")[2]
MODULE = textwrap.dedent(re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)[0])


@pytest.mark.slow
def test_the_page_s_row_is_all_that_it_takes(tmp_path):
    """To run, to be offered and to be known, in a copy of the engine with the page's file, and a word in another."""
    home = tmp_path / "odc_engine/backends"
    shutil.copytree(ROOT / "odc_engine", tmp_path / "odc_engine", ignore=shutil.ignore_patterns("__pycache__"))
    (home / "mine").mkdir()
    (home / "mine/__init__.py").write_text(MODULE)
    text = (home / "__init__.py").read_text()
    text = text.replace("from odc_engine.backends import ", "from odc_engine.backends import mine, ", 1)
    (home / "__init__.py").write_text(text.replace("shm.ROW,", "shm.ROW, mine.ROW,", 1))
    schedule.write(jobs.file_of((2, 1)), tmp_path / "s.jsonl")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "COLUMNS": "400"}

    def told(line):
        command = [sys.executable, "-m", "odc_engine", *line.split()]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0 or line == "doctor", done.stderr
        return done.stdout

    told("run s.jsonl --sync on-demand --backend mine -o t.npz")
    assert timeline.read(tmp_path / "t.npz").about.hardware.endswith("; backend mine, locked")
    assert "--backend {shm,mine,threads," in told("profile --help")
    assert re.search(r"\bmine +processes", told("doctor").partition("backend:")[2])


@dataclass(frozen=True, slots=True)
class Toy(Processes):
    """Processes that share memory, and note who has asked for it."""

    folder: str = ""

    def memory(self, host, device=None):  # noqa: ARG002
        Path(self.folder, str(host.rank)).touch()
        return host


@pytest.fixture
def toy(monkeypatch, tmp_path):
    row = Toy(name="toy", says="a toy", profiled=BOTH, folder=str(tmp_path))
    monkeypatch.setattr(backends, "ROWS", (*backends.ROWS, row))
    return row


def test_gradients_are_verified_through_a_row(toy, tmp_path):
    """By the command, in processes that know of it by the job alone. It fails where gradients differ."""
    schedule.write(jobs.file_of((2, 1)), tmp_path / "s.jsonl")
    assert main(["verify", str(tmp_path / "s.jsonl"), "--sync", "on-demand", "--backend", "toy"]) == 0
    assert all((Path(toy.folder) / str(rank)).exists() for rank in range(2))


def test_a_row_is_offered_and_advised_and_what_it_leaves_out_is_as_on_a_processor(toy, capsys):
    for command in ("run", "verify", "profile"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert ",nvshmem,toy}" in capsys.readouterr().out
    told = [work.told(lambda name=name: backends.chosen(name, "cuda")) for name in ("toyy", "toy")]
    told.append(work.told(lambda: backends.check(backends.chosen("torch"), Recipe("collective", sharding="hybrid"))))
    assert ["toy" in each for each in told] == [True] * 3
    assert told[2].endswith("use --backend shm, threads, tcp, cuda_ipc, nvshmem, toy")
    assert backends.profiled()[-2:] == ["toy", "torch"]  # which says less
    [finding] = [f for f in abilities.examine() if f.name == "toy"]
    assert (finding.area, finding.found, finding.ok) == ("backend", "a toy", True)
    assert "toy" not in backends.measured()  # it names no rival
    assert toy.one_sided


def test_rows_are_found_by_what_they_can_do():
    assert backends.usual("cpu") is backends.USUAL is backends.chosen("shm")
    assert [backends.usual("cpu", across=True).name, backends.usual("cuda", across=True).name] == ["tcp", "nvshmem"]
    assert backends.usual("cuda").name == "cuda_ipc"
    assert backends.across() == ("tcp", "nvshmem")
    assert set(backends.measured()) == {"shm", "cuda_ipc"}
    assert backends.by_device() == ("threads", "torch")
    assert [backends.label(row) for row in backends.ROWS if row.name == "torch"] == ["torch", "torch cuda"]
