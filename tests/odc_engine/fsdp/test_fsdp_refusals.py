"""What one-sided communication cannot do is refused by name, in one line."""

import nets
import pytest
import work
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from work import Case, told

from odc_engine.fsdp.on_demand import OnDemand

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


REFUSED = [
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
