"""FSDP2's own collectives over NCCL: gradients of one process, and times that obey the program. Not run yet."""

import json

import numpy as np
import pytest
import torch
from teams import file_of, minibatch

from odc_engine.cli import main
from odc_engine.job import job_of
from odc_engine.measuring.ground import Gpu
from odc_engine.runs import launch, run, verify
from odcsim import timeline
from odcsim.errors import InputError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a GPU for each device: two or more")
SYNCS = ("collective", "deferred")
FILE = file_of(*[minibatch((2, 2))] * 3)


def job(sync, **options):
    return job_of(FILE, sync=sync, backend="torch", device="cuda", timeout=60.0, **options)


@several
@pytest.mark.parametrize("sync", SYNCS)
def test_gradients_equal_one_process(sync):
    assert verify.verify(FILE, job(sync), False) == 0


@several
@pytest.mark.parametrize("sync", SYNCS)
def test_transfers_follow_each_other_and_compute_its_gathers(sync, tmp_path):
    path = tmp_path / "t.npz"
    pytest.importorskip("triton", reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt")
    assert run.run(FILE, job(sync, emulate=True, gpu="a100"), str(path), quiet=True) == 0
    [block] = timeline.read(path).blocks
    before = block.program.previous_in_lane()
    for i, step in enumerate(block.program.steps):
        assert np.isfinite(block.asked[i]).all()
        assert (block.had[i] >= block.asked[i]).all()
        for need in (*step.after, *([before[i]] if before[i] >= 0 else [])):
            assert (block.asked[i] >= block.had[need] - 1e-5).all(), (step, block.program.steps[need])


@several
def test_a_push_lies_beside_backward(tmp_path):
    """Were NCCL waited for by compute, none would."""
    path = tmp_path / "t.npz"
    assert run.run(FILE, job("collective", emulate=True, gpu="a100"), str(path), quiet=True) == 0
    [block] = timeline.read(path).blocks
    steps = block.program.steps
    kinds = [block.program.durations[s.duration][0] if s.kind == "compute" else s.kind for s in steps]
    backward = [i for i, kind in enumerate(kinds) if kind == "backward"]
    pushes = [i for i, kind in enumerate(kinds) if kind == "push"]
    beside = [(block.asked[p] < block.had[b]) & (block.had[p] > block.asked[b]) for p in pushes for b in backward]
    assert np.array(beside).any()


def refused(host, job):
    verify._verify_device(host, job, False)


@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="needs a machine with one GPU")
def test_two_devices_on_one_gpu_are_refused_early_and_late(capfd):
    with pytest.raises(InputError, match="2 devices on 1 GPUs"):
        run.check(FILE, job("collective"))
    assert launch.run(refused, 2, 60.0, job("collective")) == 1
    assert "NCCL fails" in capfd.readouterr().err


@several
def test_the_bandwidth_command_proves_every_way(capfd):
    pytest.importorskip("triton", reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt")
    assert main(["bandwidth", "--backend", "cuda_ipc", "--devices", "2", "--bytes", "1048576", "--json"]) == 0
    assert [rate["way"] for rate in json.loads(capfd.readouterr().out)["rates"]] == list(Gpu.ways)
