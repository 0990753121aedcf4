"""What FSDP2's own collectives over NCCL take, and what is refused before anything is started."""

import os
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from jobs import file_of, job_for, minibatch

from odc_engine.backends import gpus, nccl
from odc_engine.cli import main
from odc_engine.places.queues import queues
from odc_engine.runs import run
from odcsim import schedule
from odcsim.errors import InputError

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
CUDA = ["--backend", "torch", "--device", "cuda"]
FILE = file_of((2, 2), (1, 1))


def on_cuda():
    return replace(job_for(FILE, "collective", "torch"), backend=nccl.ROW)


@no_gpu
@pytest.mark.parametrize("command", ["run", "verify", "profile"])
def test_without_a_gpu_it_is_refused_in_a_line(command, tmp_path, capsys):
    path = tmp_path / "s.jsonl"
    schedule.write(FILE, path)
    output = [] if command == "verify" else ["-o", str(tmp_path / "out")]
    what = ["--model", "nano"] if command == "profile" else [str(path), "--sync", "collective"]
    assert main([command, *what, *CUDA, *output]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("odc_engine: error: NCCL needs NVIDIA GPUs, and torch ")


@no_gpu
def test_bandwidth_of_gpus_is_refused_in_a_line_too(capsys):
    assert main(["bandwidth", "--backend", "cuda_ipc", "--devices", "2"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("odc_engine: error: backend cuda_ipc needs NVIDIA GPUs")


@pytest.mark.parametrize(
    ("backend", "sync", "message"),
    [
        ("torch", "on-demand", "backend torch has collectives only"),
        ("cuda_ipc", "collective", "--device cuda with backend cuda_ipc; --backend threads or torch"),
        ("nvshmem", "collective", "--device cuda with backend nvshmem"),
    ],
)
def test_what_makes_no_sense_is_refused_before_torch_loads(backend, sync, message, tmp_path, capsys, monkeypatch):
    path = tmp_path / "s.jsonl"
    schedule.write(FILE, path)
    monkeypatch.setitem(sys.modules, "torch", None)
    told = ["--backend", backend, "--device", "cuda", "--sync", sync]
    assert main(["verify", str(path), *told]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    return monkeypatch


def test_a_gpu_for_each_device_is_what_it_takes(two_gpus):
    run.check(FILE, on_cuda())
    assert run.hardware(on_cuda()).startswith("2 x a GPU; ")
    assert (nccl.ROW.across, nccl.ROW.env(on_cuda().use)) == (True, queues(os.environ))
    assert job_for(FILE, "collective", "torch").backend.across is False
    with pytest.raises(InputError, match="3 devices on 2 GPUs, and NCCL refuses two on one; at most 2 devices"):
        run.check(file_of((1, 1, 1)), replace(on_cuda(), schedules=(minibatch(1, 1, 1),)))
    two_gpus.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(InputError, match=r"torch .* has no NCCL; install"):
        run.check(FILE, on_cuda())


def test_a_launcher_may_show_each_process_its_gpu_alone(two_gpus):
    two_gpus.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="2 devices on 1 GPUs"):
        gpus.refuse_without_nccl(2)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        two_gpus.setenv(name, value)
    gpus.refuse_without_nccl(2)
