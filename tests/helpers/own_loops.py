"""A training loop of a user's own, by stock FSDP2 and on demand, over any mesh of processes on any machines."""

from collections.abc import Sequence
from dataclasses import dataclass

import nets
import torch
import torch.distributed as dist
import work
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from work import Case

from odc_engine import OnDemand

FULL, HYBRID = "full", "hybrid"
CROSSED = "crossed"  # hybrid the other way round: shards over machines, replicas inside of each
COUNTS = ((3, 1, 0, 2), (0, 0, 2, 1), (1, 1, 1, 1), (0, 4, 1, 0))  # of microbatches, of each process in each minibatch
TIMEOUT = 20.0


@dataclass(frozen=True)
class Loop:
    """`by`: who meets at a minibatch's end: OnDemand called by hand, or attached to the optimizer."""

    mesh: str = FULL
    by: str = "hand"
    counts: Sequence[Sequence[int]] = COUNTS
    accumulate: str | None = None  # as suits the memory
    average: bool = False


@dataclass(frozen=True)
class Step:
    """What there is after one."""

    gradients: dict[str, Tensor | None]
    weights: dict[str, Tensor]


def mesh_of(kind: str) -> DeviceMesh:
    size = dist.get_world_size()
    if kind == FULL:
        return init_device_mesh("cpu", (size,))
    names = ("replicate", "shard")
    if kind == HYBRID:
        return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=names)
    return DeviceMesh("cpu", torch.arange(size).view(2, -1).t().contiguous(), mesh_dim_names=names)


def sharded(kind: str) -> nn.Module:
    model, mesh = Case((1,)).fresh(), mesh_of(kind)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """None whose steps depend on signs of what is nearly nothing."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def stock(rank: int, loop: Loop) -> list[Step]:
    """Whoever has fewer microbatches than others runs the rest for nothing."""
    model = sharded(loop.mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
            module.set_gradient_divide_factor(1.0)
    optimizer, steps = optimizer_of(model), []
    for number, counts in enumerate(loop.counts):
        for m in range(max(counts)):
            share = 1.0 if m < counts[rank] else 0.0
            (nets.loss(model, rank, m, number) * share).backward()
        optimizer.step()
        steps.append(Step(work.whole_gradients(model), work.whole_parameters(model)))
        optimizer.zero_grad()
    return steps


def on_demand(rank: int, loop: Loop) -> list[Step]:
    model = sharded(loop.mesh)
    odc = OnDemand(model, accumulate=loop.accumulate, average=loop.average, timeout=TIMEOUT)
    try:
        return steps_of(rank, loop, model, odc)
    finally:
        odc.close()


def steps_of(rank: int, loop: Loop, model: nn.Module, odc: OnDemand) -> list[Step]:
    optimizer, steps = optimizer_of(model), []
    if loop.by == "attached":
        odc.attach(optimizer)
    scale = dist.get_world_size() if loop.average else 1
    for number, counts in enumerate(loop.counts):
        for m in range(counts[rank]):
            (nets.loss(model, rank, m, number) * scale).backward()
        if loop.by == "hand":
            odc.settle()
        optimizer.step()
        steps.append(Step(work.whole_gradients(model), work.whole_parameters(model)))
        optimizer.zero_grad()
        if loop.by == "hand":
            odc.publish()
    return steps


def worst(mine: Sequence[Step], theirs: Sequence[Step]) -> float:
    """Of all steps, the largest difference over the largest value of the same parameter."""
    assert len(mine) == len(theirs)
    pairs = zip(mine, theirs, strict=True)
    return max(max(work.error(m.gradients, t.gradients), work.error(m.weights, t.weights)) for m, t in pairs)
