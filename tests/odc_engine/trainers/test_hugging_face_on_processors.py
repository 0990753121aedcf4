"""The program of the page on Hugging Face, as it stands there, on a machine without GPUs."""

from unittest import mock

import pytest
import torch
from accelerate.state import PartialState
from jobs import torchrun
from programs import program

from odc_engine.trainers import on_processors
from odcsim.errors import InputError

MODULE = "odc_engine.trainers.on_processors"


@pytest.fixture(autouse=True)
def usual():
    with mock.patch.object(PartialState, "__init__", PartialState.__init__):
        yield


@pytest.mark.slow
def test_the_page_s_program_learns_where_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "pretrain.py").write_text(program("hugging-face.md", "pretrain.py"), encoding="utf-8")
    done = torchrun(tmp_path, "--nproc-per-node", "2", "-m", MODULE, "pretrain.py", warnings="default")
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in done.stdout.split("losses")[1].split()]
    assert losses[-1] < losses[0] - 1


def test_where_there_is_a_gpu_nothing_changes(monkeypatch):
    before = PartialState.__init__
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    on_processors.on_processors()
    assert PartialState.__init__ is before


def test_calling_it_twice_is_calling_it_once():
    on_processors.on_processors()
    once = PartialState.__init__
    on_processors.on_processors()
    assert PartialState.__init__ is once


def test_without_a_program_it_is_refused():
    with pytest.raises(InputError):
        on_processors.main(["nowhere.py"])
