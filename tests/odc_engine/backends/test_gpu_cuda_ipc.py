"""Processes that share one GPU: gradients of one process, and times that obey the program. Not run yet.

They take turns on it, so that no time means anything by itself.
"""

import numpy as np
import pytest
import torch
from teams import file_of, minibatch

from odc_engine.job import job_of
from odc_engine.runs import launch, run, verify
from odcsim import timeline

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
COUNTS = {"on-demand": (3, 1, 2, 0), "collective": (2, 2, 2, 2), "deferred": (2, 2, 2, 2)}


def verified(host, job):
    verify._verify_device(host, job, False)


@pytest.mark.parametrize("accumulate", ["locked", "slots"])
@pytest.mark.parametrize("sync", COUNTS)
def test_gradients_equal_one_process(sync, accumulate):
    schedules = [minibatch(COUNTS[sync])] * 2
    job = job_of(file_of(*schedules), sync=sync, backend="cuda_ipc", accumulate=accumulate, timeout=60.0)
    assert launch.run(verified, 4, 120.0, job) == 0


@pytest.mark.parametrize("accumulate", ["locked", "slots"])
@pytest.mark.parametrize("per_node", [1, 2])
def test_gradients_equal_one_process_in_nodes(per_node, accumulate):
    hybrid = {"sharding": "hybrid", "devices_per_node": per_node}
    file = file_of(*[minibatch(COUNTS["on-demand"])] * 2)
    job = job_of(file, sync="on-demand", backend="cuda_ipc", accumulate=accumulate, timeout=60.0, **hybrid)
    assert launch.run(verified, 4, 120.0, job) == 0


@pytest.mark.parametrize("sync", ["on-demand", "collective"])
def test_emulated_compute_takes_its_seconds_on_the_stream(sync, tmp_path):
    """As a profile needs it, which times transfers beside a pause."""
    file = file_of(*[minibatch((2, 2))] * 3)
    job = job_of(file, sync=sync, backend="cuda_ipc", emulate=True, gpu="a100", timeout=60.0)
    path = tmp_path / "t.npz"
    assert run.run(file, job, str(path), quiet=True) == 0
    [block] = timeline.read(path).blocks
    program = block.program
    load = job.cost.load(list(file.schedules))
    seconds = job.cost.durations(program, load)
    for i, step in enumerate(program.steps):
        assert np.isfinite(block.asked[i]).all()
        assert (block.had[i] >= block.asked[i]).all()
        if step.kind == "compute":
            assert (block.had[i] - block.asked[i] >= seconds[step.duration] - 1e-5).all(), (i, step)
