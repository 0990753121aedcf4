"""What backend nvshmem refuses before anything is started."""

import importlib.util

import pytest
import torch
from teams import file_of, minibatch

from odc_engine.cli import main
from odcsim import schedule


def lines(arguments, capsys):
    assert main(arguments) == 2
    return capsys.readouterr().err.splitlines()


@pytest.fixture
def asked(tmp_path):
    schedule.write(file_of(minibatch((2, 1))), tmp_path / "s.jsonl")
    return [str(tmp_path / "s.jsonl"), "--sync", "on-demand", "--backend", "nvshmem"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", ["run", "verify"])
def test_without_a_gpu_it_is_refused_in_a_line(command, asked, capsys):
    output = ["-o", "t.npz"] if command == "run" else []
    [line] = lines([command, *asked, *output], capsys)
    assert line.startswith("odc_engine: error: backend nvshmem needs NVIDIA GPUs, and torch ")
    assert "use --backend shm" in line


@pytest.mark.parametrize("missing", ["triton", "nvshmem"])
def test_without_a_library_it_is_refused_in_a_line(missing, asked, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found("json"))
    [line] = lines(["verify", *asked], capsys)
    name = {"triton": "Triton", "nvshmem": "nvshmem4py"}[missing]
    assert line.startswith(f"odc_engine: error: backend nvshmem needs {name}, which is not installed; pip install")


def test_several_machines_need_slots(asked, capsys, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    if not torch.cuda.is_available():  # under hybrid sharding no push leaves its machine
        hybrid = ["--sharding", "hybrid", "--devices-per-node", "1"]
        assert "needs NVIDIA GPUs" in lines(["verify", *asked, *hybrid], capsys)[0]
    [line] = lines(["verify", *asked], capsys)
    assert "a network cannot add to a sum on another machine; use --accumulate slots, or --sharding hybrid" in line
