"""The programs of the pages on trainers, as they stand there, in the trainers themselves."""

import contextlib
import io
import os
import re
import runpy
from unittest import mock

import pytest
from jobs import torchrun
from programs import program
from scripts import ROOT

from odc_engine.runs import packings
from odc_engine.runs.script import verify_script

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports the trainer there


@contextlib.contextmanager
def processors(page, rank, folder):
    """In a process without GPUs, which outlives its program, group and all, one with a GPU to the trainer of a page."""
    if page == "torchtitan.md":
        from tiny_titan import on_processors

        on_processors(rank)
        usual = contextlib.nullcontext()
    else:
        from accelerate import state
        from pretended import make
        from tiny_trainers import started

        started(rank)
        usual = mock.patch.object(state.PartialState, "__init__", make)
    os.environ["WORLD_SIZE"] = "2"
    leaves = mock.patch("torch.distributed.destroy_process_group")
    with usual, leaves, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        yield printed


def ran(rank, folder, page, name):
    with processors(page, rank, folder) as printed:
        runpy.run_path(name, run_name="__main__")
    return printed.getvalue()


def verified(rank, folder, page, name):
    with processors(page, rank, folder) as printed:
        code = verify_script([name])
    return code, printed.getvalue()


def packed(rank, folder, page, name, otherwise):
    with processors(page, rank, folder):
        return packings.first_step([name], otherwise)


def losses(printed):
    return [float(loss) for loss in printed.split("losses")[1].split()]


PRETRAIN, TITAN = ("hugging-face.md", "pretrain.py"), ("torchtitan.md", "pretrain.py")


@pytest.mark.parametrize(("page", "name", "count", "fall"), [(*PRETRAIN, 3, 1.0), (*TITAN, 8, 0.1)])
def test_a_program_learns(pools, tmp_path, page, name, count, fall):
    (tmp_path / name).write_text(program(page, name), encoding="utf-8")
    first, other = pools(2).run(ran, tmp_path, page, name, timeout=LIMIT)
    assert "losses" not in other
    assert len(losses(first)) == count
    assert losses(first)[-1] < losses(first)[0] - fall


@pytest.mark.parametrize(("page", "name"), [PRETRAIN, ("trl.md", "finetune.py"), TITAN])
def test_its_gradients_are_those_of_one_process_however_they_are_cut(pools, tmp_path, page, name):
    """What the page says to type: both ways of verify, in processes that live already."""
    (tmp_path / name).write_text(program(page, name), encoding="utf-8")
    (code, told), _ = pools(2).run(verified, tmp_path, page, name, timeout=LIMIT)
    assert code == 0, told
    assert re.search(rf"^{name}: .* equal one process", told, re.MULTILINE)
    steps = [pools(2).run(packed, tmp_path, page, name, cut, timeout=LIMIT)[0] for cut in (False, True)]
    assert packings.told(name, *steps) == 0


def test_so_it_does_under_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "finetune.py").write_text(program("trl.md", "finetune.py"), encoding="utf-8")
    pretended = str(ROOT / "tests/docs/pretended.py")
    done = torchrun(tmp_path, "--nproc-per-node", "2", pretended, "finetune.py", warnings="default")
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 3
    assert losses(done.stdout)[-1] < losses(done.stdout)[0] - 0.1
