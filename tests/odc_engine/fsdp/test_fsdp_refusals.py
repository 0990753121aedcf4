"""What one-sided communication cannot do is refused, and sums are of 32 bits whatever is reduced in."""

import contextlib
from types import SimpleNamespace

import nets
import pytest
import torch
import work
from own_loops import TENSOR, Loop, sharded
from short_memory import batch, loss
from torch import nn
from torch._dynamo.exc import Unsupported
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from users import by_layers
from work import Case

from odc_engine import OnDemand
from odc_engine.fsdp.collective import Collective
from odc_engine.fsdp.units import check_precision

HALF = torch.float16


def linear(dtype=torch.float32, **how):
    return fully_shard(nn.Linear(8, 8, dtype=dtype), **how)


def mixed(**precision):
    return linear(mp_policy=MixedPrecisionPolicy(**precision))


def two(first, second):
    return fully_shard(nn.Sequential(first, second))


def replicas(shape, of_layers=("replicate", "shard")):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = nets.Net(layers=1)
    fully_shard(model.layers[0], mesh=mesh[of_layers])
    return fully_shard(model, mesh=mesh)


def steps_in_backward():
    model = linear()
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    return model


def eight_bits():
    model = nn.Linear(8, 8, bias=False)
    model.weight = nn.Parameter(model.weight.to(torch.float8_e4m3fn), requires_grad=False)
    return fully_shard(model)


def ignored_parameters():
    model = nets.Net()
    return fully_shard(model, ignored_params={model.head.weight})


def only_layers_sharded():
    model = nets.Net()
    for layer in model.layers:
        fully_shard(layer)
    return model


REFUSED = {
    "half precision": lambda: linear(HALF),
    "computed in it": lambda: mixed(param_dtype=HALF),
    "reduced in it": lambda: mixed(param_dtype=torch.bfloat16, reduce_dtype=HALF),
    "frozen in it": lambda: two(linear(HALF).requires_grad_(False), nn.Linear(8, 8)),
    "double precision, reduced": lambda: mixed(reduce_dtype=torch.float64),
    "complex numbers": lambda: linear(torch.complex64),
    "eight bits": eight_bits,
    "offloaded": lambda: linear(offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "not sharded": nets.Net,
    "layers sharded alone": only_layers_sharded,
    "the second dimension": lambda: linear(shard_placement_fn=lambda p: Shard(p.dim() - 1)),
    "replicas on another mesh": lambda: replicas((2, 2), "shard"),
    "replicas of one device": lambda: replicas((4, 1)),
    "steps in backward": steps_in_backward,
    "several dtypes": lambda: two(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16().requires_grad_(False)),
    "several dtypes, trained": lambda: two(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16()),
    "ignored parameters": ignored_parameters,
    "an unknown way to add up": lambda: OnDemand(linear(), accumulate="slot"),
    "replicas over collectives": lambda: Collective(replicas((2, 2))),
}


def refusal(_, name):
    return work.refused(lambda: OnDemand(REFUSED[name]()))


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_trained_on_demand(pools, name):
    assert pools(4).run(refusal, name) == [True] * 4


# Later on.


LATE = {
    "gathers among some devices": (Case((1,) * 4, reshard=2), False),
    "unfrozen since": (Case((1, 1), model=nets.Half), True),
}


def late(rank, name):
    case, unfrozen = LATE[name]
    with work.device(case) as (model, _):
        if unfrozen:
            model.layers[0].up.requires_grad_(True)
        return work.refused(lambda: case.loss(model, rank, 0).backward())


@pytest.mark.parametrize("name", LATE)
def test_what_is_seen_in_the_first_pass(pools, name):
    assert all(pools(len(LATE[name][0].counts)).run(late, name))


def compiled_whole(_rank: int) -> list[str]:
    """The calls of which one graph can be made."""
    model = Case((1, 1)).fresh()
    by_layers(model)
    odc, optimizer, found = OnDemand(model), torch.optim.SGD(model.parameters(), lr=0.1), []
    odc.attach(optimizer)
    # Lambdas, as an attached optimizer's methods are another's.
    for call in (lambda: optimizer.step(), lambda: optimizer.zero_grad(), odc.publish):
        try:
            torch.compile(call, backend="eager", fullgraph=True)()
            found.append(str(call))
        except Unsupported:
            torch._dynamo.reset()
    odc.close()
    return found


def test_one_graph_of_what_meets(pools):
    assert pools(2).run(compiled_whole) == [[]] * 2


def tensor_parallel(rank):
    model = sharded(Loop(TENSOR))
    odc = OnDemand(model, timeout=20)
    nets.loss(model, rank // 2, 0).backward()
    if rank == 3:
        model.zero_grad()
    refused = [work.refused(odc.settle), work.refused(lambda: odc.retry(lambda rows: loss(model, rows), batch(rank)))]
    odc.publish()
    odc.close()
    return refused


def test_a_drop_by_one_and_a_retry_under_tensor_parallel(pools):
    assert pools(4).run(tensor_parallel) == [[True, True]] * 4


# Precision.


class Packed(SimpleNamespace):
    """A tensor that says itself what of it is gathered, as float8's of other packages."""

    fsdp_pre_all_gather = None


def test_bytes_packed_by_the_tensor_and_double_precision_on_a_gpu():
    unit = SimpleNamespace(name="root", offloaded=False, policies=lambda: [MixedPrecisionPolicy()])
    on_gpu, on_cpu = (SimpleNamespace(dtype=torch.float64, is_cuda=where) for where in (True, False))
    for tensor, refused in ((Packed(dtype=torch.bfloat16), True), (on_gpu, True), (on_cpu, False)):
        unit.shards = lambda tensor=tensor: [SimpleNamespace(_local_tensor=tensor)]
        assert work.refused(lambda: check_precision(unit, ["weight"])) == refused


def summed(_, reduced):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
    model = fully_shard(nn.Linear(8, 1, bias=False), mp_policy=policy)
    with contextlib.closing(OnDemand(model, average=False)) as odc:
        for _ in range(8):
            model(torch.full((1, 8), 1 + 2**-7)).sum().backward()
        odc.settle()
        found = model.weight.grad.full_tensor()[0].tolist()
        odc.publish()
    return found


@pytest.mark.parametrize("reduced", [None, torch.bfloat16, torch.float32])
def test_sums_are_of_32_bits_whatever_is_reduced_in(pools, reduced):
    """Of 2 x 8 gradients of 1 + 2^-7 no sum in bf16 would be exact. What is pushed is bf16 in any case."""
    assert pools(2).run(summed, reduced) == [[16 * (1 + 2**-7)] * 8] * 2
