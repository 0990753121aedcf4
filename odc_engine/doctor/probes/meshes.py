"""A model of a user's own under `OnDemand`: over a mesh of replicas and shards, and in precisions that are refused.
Processes share a GPU where there is one for all of them. On a CPU they share its memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odc_engine.doctor.probes.base import CPU, FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.ranks import on_ranks

if TYPE_CHECKING:
    from torch import nn

WIDTH, COUNTS = 256, (2, 0, 1, 3)  # of the model, and microbatches of each process
BOUND = 1e-5


def probe(hearing: Hearing) -> Answer:
    """Replicas of two shards each: a group's ranks are not the machine's, nor its processes' GPUs. Then what all refuse
    in the same words, before anything is allocated."""
    every = on_ranks(work, len(COUNTS), hearing.patience, hearing.device)
    found, words = [each for each, _ in every], [told for _, told in every]
    hearing.note(gpus=[gpu for gpu, _, _ in found], kept=[kept for _, kept, _ in found], words=words[0])
    error = max(error for _, _, error in found)
    wrong = [f"the present GPU of process {rank} moved" for rank, (gpu, kept, _) in enumerate(found) if gpu != kept]
    wrong += [f"{name} is not refused" for name, said in words[0].items() if not said]
    wrong += ["refused in words that differ"] * any(words[0] != others for others in words)
    told = f"2 replicas of 2 shards: largest difference {error:.1e} of one process"
    if wrong or error > BOUND:
        return Answer(FAILED, "; ".join([told, *wrong]))
    return Answer(OK, f"{told}; refused are {', '.join(words[0])}")


def work(rank: int, device: str) -> tuple[tuple[int, int, float], dict[str, str]]:
    return replicated(rank, device), refusals(device)


def present(rank: int, device: str) -> int:
    """The GPU of a process, which is present to it from now on."""
    import torch

    if device == CPU:
        return 0
    torch.cuda.set_device(rank % torch.cuda.device_count())
    return torch.cuda.current_device()


def replicated(rank: int, device: str) -> tuple[int, int, float]:
    """The process's GPU, the one that is present to it in the end, and the largest difference of its gradients."""
    import copy

    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from odc_engine.fsdp.on_demand import OnDemand

    gpu = present(rank, device)
    model = _model(device)
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
    error = max(
        _difference(mine, whole, rows) for mine, whole in zip(model.parameters(), alone.parameters(), strict=True)
    )
    odc.publish()
    odc.close()
    return gpu, gpu if device == CPU else torch.cuda.current_device(), error


def _difference(mine: Any, whole: Any, rows: slice) -> float:
    expected = whole.grad[rows]
    return float((mine.grad.to_local() - expected).abs().max() / expected.abs().max())


def _model(device: str) -> "nn.Sequential":
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)


def refusals(device: str) -> dict[str, str]:
    """What is said of each, "" where it is taken."""
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    from odc_engine.fsdp.on_demand import OnDemand
    from odcsim.errors import InputError

    half = MixedPrecisionPolicy(param_dtype=torch.float16)
    reduced = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float16)
    ways: dict[str, Callable[[], Any]] = {
        "float16 parameters": lambda: fully_shard(_model(device).half()),
        "float16 compute": lambda: fully_shard(_model(device), mp_policy=half),
        "float16 reductions": lambda: fully_shard(_model(device), mp_policy=reduced),
        "CPU offload": lambda: fully_shard(_model(device), offload_policy=CPUOffloadPolicy(pin_memory=False)),
    }
    said = {}
    for name, way in ways.items():
        try:
            OnDemand(way()).close()
            said[name] = ""
        except InputError as error:
            said[name] = str(error)
    return said
