"""The table of backends: what each takes is refused where it is not there, before anything starts; and a backend is
added by one row, as CONTRIBUTING.md says it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
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


@pytest.fixture
def plan(tmp_path):
    schedule.write(FILE, tmp_path / "s.jsonl")
    return str(tmp_path / "s.jsonl")


def refused_in_a_line(arguments, folder, capsys):
    before = set(folder.iterdir())
    assert main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert set(folder.iterdir()) == before
    return line


TAKES_GPUS = [("nvshmem", "cpu", 1), ("cuda_ipc", "cpu", 1), ("threads", "cuda", 1), ("threads", "cuda", 2),
              ("torch", "cuda", 2), ("shm", "cuda", 2)]  # fmt: skip


TAKES_GPUS = [(command, *each) for command in ("run", "verify") for each in TAKES_GPUS]
TAKES_GPUS += [("profile", *each[1:]) for each in TAKES_GPUS[1:6]] + [("bandwidth", "cuda_ipc", "cpu", 2)]


@no_gpu
@pytest.mark.parametrize(("command", "backend", "device", "devices"), TAKES_GPUS)
def test_what_takes_a_gpu_is_refused_in_a_line(command, backend, device, devices, tmp_path, capsys):
    schedule.write(jobs.file_of((2,) * devices), tmp_path / "s.jsonl")
    sync = "collective" if backend == "torch" else "on-demand"
    what = {"run": [str(tmp_path / "s.jsonl"), "--sync", sync, "-o", str(tmp_path / "out")],
            "verify": [str(tmp_path / "s.jsonl"), "--sync", sync],
            "profile": ["--model", "nano", "-o", str(tmp_path / "out")],
            "bandwidth": ["--devices", "2"]}[command]  # fmt: skip
    which = [] if command == "bandwidth" else ["--device", device]
    refused_in_a_line([command, *what, "--backend", backend, *which], tmp_path, capsys)


@pytest.mark.parametrize(
    ("backend", "sync"), [("torch", "on-demand"), ("cuda_ipc", "collective"), ("nvshmem", "collective")]
)
def test_what_makes_no_sense_is_refused_before_torch_loads(backend, sync, plan, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    refused_in_a_line(["verify", plan, "--backend", backend, "--device", "cuda", "--sync", sync], tmp_path, capsys)


@pytest.mark.parametrize("missing", ["triton", "nvshmem"])
def test_without_a_library_it_is_refused(missing, plan, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found("json"))
    line = refused_in_a_line(["verify", plan, "--sync", "on-demand", "--backend", "nvshmem"], tmp_path, capsys)
    assert "pip install" in line


STARTED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}


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
    for name, value in (STARTED | {"LOCAL_WORLD_SIZE": here}).items():
        monkeypatch.setenv(name, value)
    row = backends.chosen(backend)
    recipe = Recipe("on-demand", accumulate=accumulate, sharding=sharding)
    use = replace(jobs.job_for(FILE).use, recipe=recipe)
    if kind is None:
        row.needs(use)
        return
    monkeypatch.setattr(gpus, "refuse_without_gpus", lambda _: pytest.fail("it is refused before GPUs are looked for"))
    with pytest.raises(kind):
        row.needs(use)


def as_a_library(_):
    return refused(lambda: cuda_ipc.ROW.memory(SharedMemory(timeout=30.0), torch.device("cuda", 0)))


@no_gpu
def test_as_a_library_it_is_refused_too(pools):
    assert pools(2).run(as_a_library) == ["InputError"] * 2


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    return monkeypatch


def test_nccl_takes_a_gpu_for_each_device(two_gpus):
    job = replace(jobs.job_for(FILE, "collective", "torch"), backend=nccl.ROW)
    run.check(FILE, job)
    assert run.hardware(job).startswith("2 x a GPU; ")
    assert (nccl.ROW.across, nccl.ROW.env(job.use)) == (True, queues(os.environ))
    assert nccl.ROW.env(replace(job.use, recipe=replace(job.use.recipe, copies="engines")))[nccl.POLICY] == nccl.NO_SM
    three = replace(job, schedules=(jobs.minibatch(1, 1, 1),))
    with pytest.raises(InputError):
        run.check(jobs.file_of((1, 1, 1)), three)
    two_gpus.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError):
        gpus.refuse_without_nccl(2)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        two_gpus.setenv(name, value)
    gpus.refuse_without_nccl(2)  # a launcher may show each process its GPU alone
    two_gpus.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(InputError):
        gpus.refuse_without_nccl(2)


PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a backend")[2]
MODULE = textwrap.dedent(re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)[0])


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the engine in which the page's steps are done: a file, and a word in another."""
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "odc_engine", folder / "odc_engine", ignore=shutil.ignore_patterns("__pycache__"))
    home = folder / "odc_engine/backends"
    (home / "mine").mkdir()
    (home / "mine/__init__.py").write_text(MODULE)
    text = (home / "__init__.py").read_text()
    text = text.replace("from odc_engine.backends import ", "from odc_engine.backends import mine, ", 1)
    (home / "__init__.py").write_text(text.replace("shm.ROW,", "shm.ROW, mine.ROW,", 1))
    return folder


def called(house, *arguments):
    env = os.environ | {"PYTHONPATH": f"{house}{os.pathsep}{ROOT}", "COLUMNS": "400"}
    command = [sys.executable, "-m", "odc_engine", *arguments]
    return subprocess.run(command, cwd=house, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_page_s_row_is_all_that_it_takes(house):
    """To run, to be offered and to be known."""
    schedule.write(jobs.file_of((2, 1)), house / "s.jsonl")
    done = called(house, "run", "s.jsonl", "--sync", "on-demand", "--backend", "mine", "-o", "t.npz")
    assert done.returncode == 0, done.stderr
    assert timeline.read(house / "t.npz").about.hardware.endswith("; backend mine, locked")
    assert "--backend {shm,mine,threads," in called(house, "profile", "--help").stdout
    assert re.search(r"\bmine +processes", called(house, "doctor").stdout.partition("backend:")[2])


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


@pytest.mark.parametrize("command", ["run", "verify", "profile"])
@pytest.mark.usefixtures("toy")
def test_a_row_is_a_choice_of_the_command_line(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert ",nvshmem,toy}" in capsys.readouterr().out


def test_a_row_is_advised_and_what_it_leaves_out_is_as_on_a_processor(toy):
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
