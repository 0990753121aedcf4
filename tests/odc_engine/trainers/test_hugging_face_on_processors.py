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


def test_calling_it_twice_is_calling_it_once_and_nothing_where_there_is_a_gpu(monkeypatch):
    inits = [PartialState.__init__]
    for gpu in (True, False, False):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda gpu=gpu: gpu)
        on_processors.on_processors()
        inits.append(PartialState.__init__)
    assert inits[0] is inits[1]
    assert inits[1] is not inits[2]
    assert inits[2] is inits[3]


def test_without_a_program_it_is_refused():
    with pytest.raises(InputError):
        on_processors.main(["nowhere.py"])
