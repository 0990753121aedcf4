"""Two lines put into a loop change no number: its gradients, norms and weights are stock FSDP2's, or one process's."""

import nets
import pytest
import torch
import work
from own_loops import ADAMW, FULL, HYBRID, TENSOR, Loop, alone, both, on_demand, sharded
from own_loops import worst as furthest
from torch.distributed.fsdp import MixedPrecisionPolicy

from odc_engine import OnDemand

EVEN, UNEVEN = ((2, 2, 2, 2),) * 2, ((3, 1, 0, 2), (0, 0, 2, 1))
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
BF16_IN_FP32 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
LOOPS = {
    "attached": Loop(FULL, "attached", EVEN, clip=0.5),
    "three ranks, of which one has nothing": Loop(counts=((3, 0, 1), (1, 1, 2)), optimizer=ADAMW, clip=0.5),
    "replicas, uneven": Loop(HYBRID, "attached", UNEVEN, optimizer=ADAMW, clip=0.5),
    "a factor of the user's": Loop(FULL, "attached", EVEN, factors=(3.0,) * 4),
    "tensor parallel": Loop(TENSOR, "attached", ((3, 1), (0, 2)), optimizer=ADAMW),
    # The others are slow.
    "by hand, AdamW": Loop(counts=EVEN, optimizer=ADAMW, clip=0.5),
    "one rank": Loop(FULL, "attached", ((2,), (2,))),
    "replicas by hand": Loop(HYBRID, counts=EVEN),
    "a factor, on replicas": Loop(HYBRID, "attached", EVEN, factors=(3.0,) * 4),
    "a factor of each unit's": Loop(counts=EVEN, factors=(1.0, 2.0, 4.0, 0.5)),
    "gradients kept back": Loop(FULL, "attached", EVEN, deferred=True),
    "nodes": Loop(FULL, "attached", EVEN, how={"devices_per_node": 2}),
    "bf16": Loop(FULL, "attached", EVEN, policy=BF16),
    "bf16, sums in fp32": Loop(HYBRID, "attached", EVEN, policy=BF16_IN_FP32),
}
EVERY = [
    pytest.param(loop, id=name, marks=[pytest.mark.slow] * (i > 4)) for i, (name, loop) in enumerate(LOOPS.items())
]


@pytest.mark.parametrize("loop", EVERY)
def test_all_is_as_under_stock_fsdp2(pools, loop):
    devices = 4 if loop.mesh == TENSOR else len(loop.counts[0])
    for theirs, ours in pools(devices).run(both, loop):
        assert furthest(ours, theirs) < (5e-2 if loop.policy.param_dtype else 1e-5)


@pytest.mark.parametrize(("model", "by"), [(nets.Net, "hand"), (nets.Choosy, "attached"), (nets.Half, "hand")])
def test_replicas_train_as_one_process(pools, model, by):
    loop = Loop(HYBRID, by, UNEVEN, model, ADAMW, clip=0.5)
    every = pools(4).run(on_demand, loop)
    for steps in every:
        assert furthest(steps, alone(loop, 4)) < 1e-5
        assert all(torch.equal(value, every[0][-1].weights[name]) for name, value in steps[-1].weights.items())


@pytest.mark.parametrize("average", [True, False])
def test_sums_are_for_who_says_so(pools, average):
    loop = Loop(counts=((2, 1),), how={"average": average})
    for steps in pools(2).run(on_demand, loop):
        assert furthest(steps, alone(loop, 2 if average else 1)) < 1e-5


def sums_of_what_is_divided(rank):  # noqa: ARG001
    model = sharded(Loop(factors=(3.0,) * 4))
    refused = work.refused(lambda: OnDemand(model, average=False))
    OnDemand(model).close()
    return refused


def test_sums_that_the_user_has_divided_are_refused(pools):
    assert pools(2).run(sums_of_what_is_divided) == [True] * 2
