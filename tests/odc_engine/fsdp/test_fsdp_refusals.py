"""What one-sided communication cannot do is refused by name, in one line."""

from types import SimpleNamespace

import nets
import pytest
import torch
import work
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from work import Case, told

from odc_engine import OnDemand
from odc_engine.fsdp.groups import Group
from odc_engine.fsdp.precision import check_precision

PAIR = Case((2, 1))


def dim_one():
    return fully_shard(nn.Linear(8, 8), shard_placement_fn=lambda p: Shard(p.dim() - 1))


def replicas_on_another_mesh():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = nets.Net(layers=1)
    fully_shard(model.layers[0], mesh=mesh["shard"])
    return fully_shard(model, mesh=mesh)


def steps_in_backward():
    model = fully_shard(nn.Linear(8, 8))
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    return model


def mixed_dtypes():
    frozen = nn.Linear(8, 8).bfloat16().requires_grad_(False)
    return fully_shard(nn.Sequential(nn.Linear(8, 8), frozen))


def mixed_dtypes_both_trained():
    return fully_shard(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16()))


def ignored_parameters():
    model = nets.Net()
    return fully_shard(model, ignored_params={model.head.weight})


def only_layers_sharded():
    model = nets.Net()
    for layer in model.layers:
        fully_shard(layer)
    return model


def mixed(**precision):
    return fully_shard(nn.Linear(8, 8), mp_policy=MixedPrecisionPolicy(**precision))


def half_precision():
    return fully_shard(nn.Linear(8, 8).half())


def half_precision_computed():
    return mixed(param_dtype=torch.float16)


def half_precision_reduced():
    return mixed(param_dtype=torch.bfloat16, reduce_dtype=torch.float16)


def half_precision_frozen():
    model = nn.Sequential(fully_shard(nn.Linear(8, 8).half().requires_grad_(False)), nn.Linear(8, 8))
    return fully_shard(model)


def double_precision_reduced():
    return mixed(reduce_dtype=torch.float64)


def complex_numbers():
    return fully_shard(nn.Linear(8, 8, dtype=torch.complex64))


def eight_bits():
    model = nn.Linear(8, 8, bias=False)
    model.weight = nn.Parameter(model.weight.to(torch.float8_e4m3fn), requires_grad=False)
    return fully_shard(model)


def offloaded():
    return fully_shard(nn.Linear(8, 8), offload_policy=CPUOffloadPolicy(pin_memory=False))


REFUSED = [
    (half_precision, "parameter weight is float16; use float32 or bfloat16"),
    (half_precision_computed, "unit root computes in float16, by its MixedPrecisionPolicy; use torch.bfloat16"),
    (half_precision_reduced, "unit root reduces in float16, by its MixedPrecisionPolicy; leave reduce_dtype out"),
    (half_precision_frozen, "parameter 0.weight is float16"),
    (double_precision_reduced, "unit root reduces in float64"),
    (complex_numbers, "parameter weight is complex64"),
    (eight_bits, "parameter weight is float8_e4m3fn"),
    (offloaded, "unit root keeps its parameters on the CPU, by CPUOffloadPolicy; leave offload_policy out"),
    (nets.Net, "the model is not sharded; call torch.distributed.fsdp.fully_shard on it first"),
    (only_layers_sharded, "the model is not sharded"),
    (dim_one, "parameter weight is placed as S(1); shard along the first dimension"),
    (replicas_on_another_mesh, "units are replicated over different devices; give every fully_shard the same mesh"),
    (steps_in_backward, "parameter weight has a hook that steps in backward; step after settle()"),
    (mixed_dtypes, "unit root holds parameters of several dtypes; use one dtype in a unit"),
    (mixed_dtypes_both_trained, "unit root holds parameters of several dtypes; use one dtype in a unit"),
    (ignored_parameters, "parameter head.weight is not sharded; let fully_shard manage every parameter"),
]


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=[model.__name__ for model, _ in REFUSED])
def test_refused_by_name(pools, model, message):
    for found in pools(4).run(refusal, model):
        assert found.startswith(message)


def refusal(_, model):
    return told(lambda: OnDemand(model()))


def test_integer_reshard_after_forward_is_refused_at_the_first_gather_that_it_changes(pools):
    for found in pools(4).run(integer_reshard, Case((1, 1, 1, 1), reshard=2)):
        assert "gathers among 2 of 4 devices; use reshard_after_forward True or False" in found


def integer_reshard(rank, case):
    with work.device(case) as (model, _):
        return told(lambda: case.loss(model, rank, 0).backward())


def test_unfreezing_after_the_engine_was_made_is_refused(pools):
    for found in pools(2).run(unfreeze_late, PAIR.but(model=nets.Half)):
        assert found.startswith("parameter layers.0.up.weight was unfrozen since this OnDemand was made; close() this")


def unfreeze_late(rank, case):
    with work.device(case) as (model, _):
        model.layers[0].up.weight.requires_grad_(True)
        return told(lambda: case.loss(model, rank, 0).backward())


class Packed(SimpleNamespace):
    """A tensor that says itself what of it is gathered, as float8's of other packages."""

    fsdp_pre_all_gather = None


def test_what_packs_its_own_bytes_is_refused():
    weight = SimpleNamespace(name="weight", local=Packed(dtype=torch.bfloat16))
    own = SimpleNamespace(mp_policy=MixedPrecisionPolicy(), offload_policy=OffloadPolicy())
    told = work.told(lambda: check_precision([Group("root", (), (weight,), own)]))
    assert told.startswith("parameter weight is gathered as its Packed has it; shard plain tensors")


def test_double_precision_is_a_processors_alone():
    own = SimpleNamespace(mp_policy=MixedPrecisionPolicy(), offload_policy=OffloadPolicy())
    for on_gpu in (False, True):
        weight = SimpleNamespace(name="weight", local=SimpleNamespace(dtype=torch.float64, is_cuda=on_gpu))
        told = work.told(lambda weight=weight: check_precision([Group("root", (), (weight,), own)]))
        assert told.startswith("parameter weight is float64; use float32 or bfloat16") == on_gpu


REDUCED = [None, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("reduced", REDUCED)
def test_sums_are_of_32_bits_whatever_is_reduced_in(pools, reduced):
    """Of 2 x 8 gradients of 1 + 2^-7 no sum in bf16 would be exact. What is pushed is bf16 in any case."""
    for found in pools(2).run(summed, reduced):
        assert found == [16 * (1 + 2**-7)] * 8


def summed(_, reduced):
    model = nn.Linear(8, 1, bias=False)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
    fully_shard(model, mp_policy=precision)
    odc = OnDemand(model, average=False)
    for _ in range(8):
        model(torch.full((1, 8), 1 + 2**-7)).sum().backward()
    odc.settle()
    found = model.weight.grad.full_tensor()[0].tolist()
    odc.publish()
    odc.close()
    return found
