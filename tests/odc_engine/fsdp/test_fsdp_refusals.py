"""What one-sided communication cannot do is refused, and sums are of 32 bits whatever is reduced in."""

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
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from users import by_layers
from work import Case

from odc_engine import OnDemand
from odc_engine.fsdp.collective import Collective
from odc_engine.fsdp.groups import Group
from odc_engine.fsdp.precision import check_precision
from odcsim.errors import InputError

HALF = torch.float16


def linear(dtype=torch.float32, **how):
    return fully_shard(nn.Linear(8, 8, dtype=dtype), **how)


def mixed(**precision):
    return linear(mp_policy=MixedPrecisionPolicy(**precision))


def replicas(shape, of_layers):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = nets.Net(layers=1)
    fully_shard(model.layers[0], mesh=mesh[of_layers])
    return fully_shard(model, mesh=mesh)


def steps_in_backward():
    model = linear()
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    return model


def several_dtypes(trained):
    return fully_shard(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16().requires_grad_(trained)))


def frozen(dtype):
    return fully_shard(nn.Sequential(fully_shard(nn.Linear(8, 8).to(dtype).requires_grad_(False)), nn.Linear(8, 8)))


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
    "frozen in it": lambda: frozen(HALF),
    "double precision, reduced": lambda: mixed(reduce_dtype=torch.float64),
    "complex numbers": lambda: linear(torch.complex64),
    "eight bits": eight_bits,
    "offloaded": lambda: linear(offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "not sharded": nets.Net,
    "layers sharded alone": only_layers_sharded,
    "the second dimension": lambda: linear(shard_placement_fn=lambda p: Shard(p.dim() - 1)),
    "replicas on another mesh": lambda: replicas((2, 2), "shard"),
    "replicas of one device": lambda: replicas((4, 1), ("replicate", "shard")),
    "steps in backward": steps_in_backward,
    "several dtypes": lambda: several_dtypes(False),
    "several dtypes, trained": lambda: several_dtypes(True),
    "ignored parameters": ignored_parameters,
}


def refusal(_, name):
    model = REFUSED[name]()
    return work.refused(lambda: OnDemand(model))


def collective_of_replicas(_):
    return work.refused(lambda: Collective(replicas((2, 2), ("replicate", "shard"))))


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_trained_on_demand(pools, name):
    assert pools(4).run(refusal, name) == [True] * 4


def test_replicas_over_collectives(pools):
    assert pools(4).run(collective_of_replicas) == [True] * 4


def test_an_unknown_way_to_add_up():
    with pytest.raises(InputError):
        OnDemand(nets.Net(), accumulate="slot")


# Later on.


def unfreeze(model):
    model.layers[0].up.weight.requires_grad_(True)


LATE = {
    "gathers among some devices": (Case((1,) * 4, reshard=2), lambda _: None),
    "unfrozen since": (Case((1, 1), model=nets.Half), unfreeze),
}


def late(rank, name):
    case, change = LATE[name]
    with work.device(case) as (model, _):
        change(model)
        return work.refused(lambda: case.loss(model, rank, 0).backward())


@pytest.mark.parametrize("name", LATE)
def test_what_is_seen_in_the_first_pass(pools, name):
    size = len(LATE[name][0].counts)
    assert pools(size).run(late, name) == [True] * size


def compiled_whole(_rank: int, what: str) -> bool:
    model = Case((1, 1)).fresh()
    by_layers(model)
    odc, optimizer = OnDemand(model), torch.optim.SGD(model.parameters(), lr=0.1)
    odc.attach(optimizer)
    calls = {"step": lambda: optimizer.step(), "zero_grad": lambda: optimizer.zero_grad(), "publish": odc.publish}
    try:
        torch.compile(calls[what], backend="eager", fullgraph=True)()
    except Unsupported:
        return True
    finally:
        odc.close()
        torch._dynamo.reset()
    return False


@pytest.mark.parametrize("what", ["step", "zero_grad", "publish"])
def test_one_graph_of_what_meets(pools, what):
    assert pools(2).run(compiled_whole, what) == [True] * 2


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


@pytest.mark.parametrize(
    ("tensor", "refused"),
    [
        (Packed(dtype=torch.bfloat16), True),
        (SimpleNamespace(dtype=torch.float64, is_cuda=True), True),
        (SimpleNamespace(dtype=torch.float64, is_cuda=False), False),
    ],
)
def test_bytes_packed_by_the_tensor_and_double_precision_on_a_gpu(tensor, refused):
    own = SimpleNamespace(mp_policy=MixedPrecisionPolicy(), offload_policy=OffloadPolicy())
    group = Group("root", (), (SimpleNamespace(name="weight", local=tensor),), own)
    assert work.refused(lambda: check_precision([group])) == refused


def summed(_, reduced):
    model = nn.Linear(8, 1, bias=False)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced))
    odc = OnDemand(model, average=False)
    for _ in range(8):
        model(torch.full((1, 8), 1 + 2**-7)).sum().backward()
    odc.settle()
    found = model.weight.grad.full_tensor()[0].tolist()
    odc.publish()
    odc.close()
    return found


@pytest.mark.parametrize("reduced", [None, torch.bfloat16, torch.float32])
def test_sums_are_of_32_bits_whatever_is_reduced_in(pools, reduced):
    """Of 2 x 8 gradients of 1 + 2^-7 no sum in bf16 would be exact. What is pushed is bf16 in any case."""
    assert pools(2).run(summed, reduced) == [[16 * (1 + 2**-7)] * 8] * 2
