"""A model of a user's own under `OnDemand`, in processes that share a GPU where there is one for all of them."""

import copy

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from odc_engine import OnDemand
from odcsim.errors import InputError

pytestmark = [pytest.mark.gpu, pytest.mark.limit(25), pytest.mark.usefixtures("transfers")]
WIDTH, COUNTS = 256, (2, 0, 1, 3)  # of the model, and microbatches of each process
BOUND = 1e-5


def model_on(device):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)


def present(rank, device):
    """The GPU of a process, which is present to it from now on."""
    if device == "cpu":
        return 0
    torch.cuda.set_device(rank % torch.cuda.device_count())
    return torch.cuda.current_device()


def replicated(rank, device):
    """The process's GPU, the one that is present in the end, and the largest difference of its gradients."""
    gpu = present(rank, device)
    model = model_on(device)
    alone = copy.deepcopy(model)
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    odc = OnDemand(model, accumulate="slots", average=False)  # whatever links are like
    for whose, count in enumerate(COUNTS):
        for number in range(count):
            torch.manual_seed(10 * whose + number)
            batch = torch.randn(4, WIDTH).to(device)
            alone(batch).square().sum().backward()
            if whose == rank:
                model(batch).square().sum().backward()
    odc.settle()
    rows = slice(rank % 2 * WIDTH // 2, (rank % 2 + 1) * WIDTH // 2)
    worst = 0.0
    for mine, whole in zip(model.parameters(), alone.parameters(), strict=True):
        expected = whole.grad[rows]
        worst = max(worst, float((mine.grad.to_local() - expected).abs().max() / expected.abs().max()))
    odc.publish()
    odc.close()
    return gpu, gpu if device == "cpu" else torch.cuda.current_device(), worst


def test_replicas_of_shards(device, seconds, note):
    """Do replicas of shards get the gradients of one process, and does each keep its GPU?"""
    found = on_ranks(replicated, len(COUNTS), seconds, device)
    note(gpus=[gpu for gpu, _, _ in found], errors=[error for _, _, error in found])
    assert all(gpu == kept and error <= BOUND for gpu, kept, error in found)


def refusals(rank, device):
    present(rank, device)
    half = MixedPrecisionPolicy(param_dtype=torch.float16)
    reduced = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float16)
    ways = {
        "float16 parameters": lambda: fully_shard(model_on(device).half()),
        "float16 compute": lambda: fully_shard(model_on(device), mp_policy=half),
        "float16 reductions": lambda: fully_shard(model_on(device), mp_policy=reduced),
        "CPU offload": lambda: fully_shard(model_on(device), offload_policy=CPUOffloadPolicy(pin_memory=False)),
    }
    said = {}
    for name, way in ways.items():
        try:
            OnDemand(way()).close()
            said[name] = "taken"
        except InputError as error:
            said[name] = f"refused: {error}"
    return said


def test_precisions_that_are_refused(device, seconds):
    """Are float16 and CPU offload refused by all processes, in the same words?"""
    first, second = on_ranks(refusals, 2, seconds, device)
    assert all(said.startswith("refused: ") for said in first.values()), first
    assert first == second
