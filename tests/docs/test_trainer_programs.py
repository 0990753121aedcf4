"""The programs of the pages on trainers, as they stand there, in the trainers themselves."""

import contextlib
import io
import runpy
from unittest import mock

import pytest
from jobs import torchrun
from programs import program
from scripts import ROOT

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports the trainer there


def processors(page, rank):
    """What makes a process without GPUs one with a GPU to the trainer of a page."""
    if page == "torchtitan.md":
        from tiny_titan import on_processors

        on_processors(rank)
        return contextlib.nullcontext()
    from accelerate import state
    from pretended import make
    from tiny_trainers import started

    started(rank)
    return mock.patch.object(state.PartialState, "__init__", make)


def ran(rank, folder, page, name):
    """What the program prints in a process that outlives it, group and all."""
    printed = io.StringIO()
    leaves = mock.patch("torch.distributed.destroy_process_group")
    with processors(page, rank), leaves, contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        runpy.run_path(name, run_name="__main__")
    return printed.getvalue()


def losses(printed):
    return [float(loss) for loss in printed.split("losses")[1].split()]


@pytest.mark.parametrize(
    ("page", "name", "count", "fall"),
    [("hugging-face.md", "pretrain.py", 3, 1.0), ("torchtitan.md", "pretrain.py", 8, 0.1)],
)
def test_a_program_learns(pools, tmp_path, page, name, count, fall):
    (tmp_path / name).write_text(program(page, name), encoding="utf-8")
    first, other = pools(2).run(ran, tmp_path, page, name, timeout=LIMIT)
    assert "losses" not in other
    assert len(losses(first)) == count
    assert losses(first)[-1] < losses(first)[0] - fall


def test_so_it_does_under_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "finetune.py").write_text(program("trl.md", "finetune.py"), encoding="utf-8")
    pretended = str(ROOT / "tests/helpers/pretended.py")
    done = torchrun(tmp_path, "--nproc-per-node", "2", pretended, "finetune.py", warnings="default")
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 3
    assert losses(done.stdout)[-1] < losses(done.stdout)[0] - 0.1
