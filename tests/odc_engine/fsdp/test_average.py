"""Two lines put into a loop change no number: with nothing else said, `OnDemand(model)` divides gradients as stock
FSDP2 does, on any mesh."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import nets
import pytest
import torch
import work
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from work import Case

from odc_engine import OnDemand

PLAIN, REPLICAS, TENSOR = ("shard",), ("replicate", "shard"), ("shard", "tensor")
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=0.01, eps=1e-4)  # such an eps that a factor on gradients shows in weights
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
BF16_IN_FP32 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@dataclass(frozen=True)
class Loop:
    """A user's. `mesh`: its dimensions, of 2 devices each where it has two. `counts`: microbatches of each rank in each
    minibatch; stock FSDP2 runs the rest for nothing. `factors`: given to set_gradient_divide_factor, unit by unit."""

    mesh: tuple[str, ...] = PLAIN
    attached: bool = True
    optimizer: Callable[..., torch.optim.Optimizer] = SGD
    counts: tuple[int, ...] = (2, 2, 2, 2)
    factors: tuple[float, ...] = ()
    policy: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    deferred: bool = False
    how: dict[str, Any] = field(default_factory=dict)

    def sharded(self) -> nn.Module:
        model = Case((1,)).fresh()
        shape = (2, 2) if len(self.mesh) > 1 else (len(self.counts),)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=self.mesh)
        over = mesh["shard"] if self.mesh == TENSOR else mesh
        for layer in model.layers:
            if self.mesh == TENSOR:
                parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(layer, mesh=over, mp_policy=self.policy)
        fully_shard(model, mesh=over, mp_policy=self.policy)
        for factor, module in zip(self.factors, (*model.layers, model), strict=bool(self.factors)):
            module.set_gradient_divide_factor(factor)
        for module in model.modules() if self.factors else ():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo divides by no other number
        return model


def steps_of(rank: int, loop: Loop, *, on_demand: bool) -> list[dict[str, torch.Tensor]]:
    """Norms, clipped gradients and weights of each step."""
    model = loop.sharded()
    data = rank // 2 if loop.mesh == TENSOR else rank
    odc = OnDemand(model, timeout=20, **loop.how) if on_demand else None
    optimizer, steps = loop.optimizer(model.parameters()), []
    if odc and loop.attached:
        odc.attach(optimizer)
    optimizer.zero_grad()
    for number in range(2):
        most = loop.counts[data] if on_demand else max(loop.counts)
        for m in range(most):
            if loop.deferred:
                model.set_requires_gradient_sync(m == most - 1)
            (nets.loss(model, data, m, number) * (m < loop.counts[data])).backward()
        if odc and not loop.attached:
            odc.settle()
        every = [] if loop.mesh == TENSOR else model.parameters()  # torch clips on one mesh
        norm = nn.utils.clip_grad_norm_(every, 0.5)
        gradients = work.whole_gradients(model)
        optimizer.step()
        steps += [{"norm": work.whole(norm)}, gradients, work.whole_parameters(model)]
        optimizer.zero_grad()
        if odc and not loop.attached:
            odc.publish()
    if odc:
        odc.close()
    return steps


def both(rank: int, loop: Loop) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    return steps_of(rank, loop, on_demand=False), steps_of(rank, loop, on_demand=True)


LOOPS = {
    "attached": Loop(),
    "three ranks, of which one has nothing, by hand": Loop(attached=False, counts=(3, 0, 1), optimizer=ADAMW),
    "replicas, uneven": Loop(REPLICAS, counts=(3, 1, 0, 2), optimizer=ADAMW),
    "a factor of the user's": Loop(factors=(3.0,) * 4),
}
MORE = {
    "by hand, AdamW": Loop(attached=False, optimizer=ADAMW),
    "two ranks": Loop(counts=(1, 1)),
    "one rank": Loop(counts=(2,)),
    "replicas by hand": Loop(REPLICAS, attached=False),
    "tensor parallel": Loop(TENSOR),
    "a factor, on replicas": Loop(REPLICAS, factors=(3.0,) * 4),
    "a factor of each unit's": Loop(factors=(1.0, 2.0, 4.0, 0.5), attached=False),
    "gradients kept back": Loop(deferred=True),
    "nodes": Loop(how={"devices_per_node": 2}),
    "bf16": Loop(policy=BF16),
    "bf16, sums in fp32": Loop(REPLICAS, policy=BF16_IN_FP32),
}


EVERY = [pytest.param(loop, id=name) for name, loop in LOOPS.items()]
EVERY += [pytest.param(loop, id=name, marks=pytest.mark.slow) for name, loop in MORE.items()]


@pytest.mark.parametrize("loop", EVERY)
def test_gradients_and_weights_are_those_of_stock_fsdp2(pools, loop):
    bound = 5e-2 if loop.policy.param_dtype else 1e-5
    for theirs, ours in pools(len(loop.counts)).run(both, loop):
        assert len(theirs) == len(ours) == 6
        assert max(map(work.error, ours, theirs)) < bound


def summed(rank: int) -> list[dict[str, torch.Tensor]]:
    return steps_of(rank, Loop(counts=(2, 1), how={"average": False}), on_demand=True)


def test_sums_are_for_who_says_so(pools):
    """Twice the mean: of the first step, the norm."""
    mean = pools(2).run(both, Loop(counts=(2, 1)))[0][1][0]["norm"]
    for steps in pools(2).run(summed):
        assert float(steps[0]["norm"]) == pytest.approx(2 * float(mean), rel=1e-5)


def refused_and_its_way_out(rank: int) -> tuple[str, str]:  # noqa: ARG001
    model = Loop(counts=(1, 1), factors=(3.0,) * 4).sharded()
    words = work.told(lambda: OnDemand(model, timeout=20, average=False))
    return words, work.told(lambda: OnDemand(model, timeout=20).close())


def test_sums_that_the_user_has_divided_are_refused_with_a_way_out(pools):
    for words, then in pools(2).run(refused_and_its_way_out):
        assert words.endswith(
            "divides gradients by 3, and OnDemand(average=False) gives sums; "
            "leave average=False out to divide as FSDP2 does"
        )
        assert then == "nothing was refused"
