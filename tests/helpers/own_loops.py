"""A training loop of a user's own, by stock FSDP2, on demand and in one process, over any mesh of processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import nets
import torch
import torch.distributed as dist
import work
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from work import Case

from odc_engine import OnDemand

FULL, HYBRID, TENSOR = "full", "hybrid", "tensor"
CROSSED = "crossed"  # hybrid the other way round: shards over machines, replicas inside of each
COUNTS = ((3, 1, 0, 2), (0, 0, 2, 1), (1, 1, 1, 1), (0, 4, 1, 0))  # of microbatches, of each process in each minibatch
TIMEOUT = 20.0
# None whose steps depend on signs of what is nearly nothing; such an eps that a factor on gradients shows in weights.
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=0.01, eps=1e-4)


@dataclass(frozen=True)
class Loop:
    """`by`: who meets at a minibatch's end: OnDemand called by hand, or attached to the optimizer. `factors`: given to
    set_gradient_divide_factor, unit by unit. `how`: what OnDemand is told."""

    mesh: str = FULL
    by: str = "hand"
    counts: Sequence[Sequence[int]] = COUNTS
    model: Callable[[], nn.Module] = nets.Net
    optimizer: Callable[..., torch.optim.Optimizer] = SGD
    clip: float = 0.0
    factors: tuple[float, ...] = ()
    policy: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    deferred: bool = False
    how: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join(map(str, (self.mesh, self.by, *self.how.values())))

    def fresh(self) -> nn.Module:
        return Case((1,), model=self.model).fresh()

    def data(self, rank: int) -> int:
        """Whose microbatches a process runs."""
        return rank // 2 if self.mesh == TENSOR else rank


@dataclass(frozen=True)
class Step:
    """What there is after one."""

    gradients: dict[str, Tensor | None]
    weights: dict[str, Tensor]
    norm: Tensor | None = None


def mesh_of(kind: str) -> DeviceMesh:
    size = dist.get_world_size()
    if kind == FULL:
        return init_device_mesh("cpu", (size,))
    names = ("replicate", "shard")
    if kind == CROSSED:
        return DeviceMesh("cpu", torch.arange(size).view(2, -1).t().contiguous(), mesh_dim_names=names)
    return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=names if kind == HYBRID else ("data", "tensor"))


def sharded(loop: Loop | str) -> nn.Module:
    loop = Loop(loop) if isinstance(loop, str) else loop
    model, mesh = loop.fresh(), mesh_of(loop.mesh)
    over = mesh["data"] if loop.mesh == TENSOR else mesh
    for layer in model.layers:
        if loop.mesh == TENSOR:
            parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=over, mp_policy=loop.policy)
    fully_shard(model, mesh=over, mp_policy=loop.policy)
    for factor, module in zip(loop.factors, (*model.layers, model), strict=bool(loop.factors)):
        module.set_gradient_divide_factor(factor)
    for module in model.modules() if loop.factors else ():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo divides by no other number
    return model


def stock(rank: int, loop: Loop) -> list[Step]:
    return steps_of(rank, loop, sharded(loop), None)


def on_demand(rank: int, loop: Loop) -> list[Step]:
    model = sharded(loop)
    odc = OnDemand(model, timeout=TIMEOUT, **loop.how)
    try:
        return steps_of(rank, loop, model, odc)
    finally:
        odc.close()


def both(rank: int, loop: Loop) -> tuple[list[Step], list[Step]]:
    return stock(rank, loop), on_demand(rank, loop)


def steps_of(rank: int, loop: Loop, model: nn.Module, odc: OnDemand | None) -> list[Step]:
    """Under stock FSDP2, whoever has fewer microbatches than others runs the rest for nothing."""
    optimizer, steps, data = loop.optimizer(model.parameters()), [], loop.data(rank)
    if odc and loop.by == "attached":
        odc.attach(optimizer)
        optimizer.zero_grad()
    for number, counts in enumerate(loop.counts):
        most = counts[data] if odc else max(counts)
        for m in range(most):
            if loop.deferred:
                model.set_requires_gradient_sync(m == most - 1)
            (nets.loss(model, data, m, number) * (m < counts[data])).backward()
        if odc and loop.by == "hand":
            odc.settle()
        steps.append(stepped(loop, model, optimizer))
        if odc and loop.by == "hand":
            odc.publish()
    return steps


def stepped(loop: Loop, model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    norm = work.whole(nn.utils.clip_grad_norm_(model.parameters(), loop.clip)) if loop.clip else None
    gradients = work.whole_gradients(model)
    optimizer.step()
    optimizer.zero_grad()
    return Step(gradients, work.whole_parameters(model), norm)


def alone(loop: Loop, devices: int) -> list[Step]:
    """In one process, by the mean over so many devices."""
    model = loop.fresh().double()
    optimizer, steps = loop.optimizer(model.parameters()), []
    for number, counts in enumerate(loop.counts):
        for rank, count in enumerate(counts):
            for m in range(count):
                (nets.loss(model, rank, m, number) / devices).backward()
        steps.append(stepped(loop, model, optimizer))
    return steps


def worst(mine: Sequence[Step], theirs: Sequence[Step]) -> float:
    """Of all steps, the largest difference over the largest value of the same parameter."""
    pairs = list(zip(mine, theirs, strict=True))
    parts = [(m.gradients, t.gradients) for m, t in pairs] + [(m.weights, t.weights) for m, t in pairs]
    parts += [({"norm": m.norm}, {"norm": t.norm}) for m, t in pairs if m.norm is not None]
    return max(work.error(own, its) for own, its in parts)
