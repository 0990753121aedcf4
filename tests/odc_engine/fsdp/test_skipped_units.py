"""A unit that a device does not use moves no byte there, forward or backward, whatever FSDP2 was told before."""

import contextlib

import nets
import pytest
import torch
import work
from habits.interrupted import Trip
from paths.followed import Moved
from torch.distributed.fsdp import FSDPModule
from work import Case

from odc_engine import OnDemand

# Device 0 leaves out layer 0 in its only microbatch, device 1 in the first of two, and layer 1 in the second.
CASE = Case((1, 2), model=nets.Dropping)
GATHERS = [{0: 0, 1: 2, 2: 2}, {0: 2, 1: 2, 2: 4}]  # of each layer, on each device: forward and backward
PUSHES = [{0: 0, 1: 1, 2: 1}, {0: 1, 1: 1, 2: 2}]


def counted(rank, told):
    model = work.shard(CASE, CASE.fresh())
    if told:
        model.set_reduce_scatter_unused_params(True)
    moved = Moved()
    odc = OnDemand(model, recorder=moved, average=False, timeout=30)
    work.minibatch(CASE, rank, model, odc)
    layers = {unit.index: int(unit.name.rpartition(".")[2]) for unit in odc.units if unit.name != "root"}
    gradients = work.whole_gradients(model)
    odc.close()
    settings = [layer._get_fsdp_state()._fsdp_param_groups[0].reduce_scatter_unused_params for layer in model.layers]
    gathers, pushes = ({layers[i]: count[i] for i in layers} for count in (moved.gathers, moved.pushes))
    return gathers, pushes, gradients, settings


@pytest.mark.skipif(not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="FSDP2 of an older torch")
@pytest.mark.parametrize("told", [False, True])
def test_a_unit_is_moved_as_often_as_it_is_used(pools, told):
    expected = work.reference(CASE)
    for rank, (gathers, pushes, gradients, settings) in enumerate(pools(2).run(counted, told)):
        assert (gathers, pushes) == (GATHERS[rank], PUSHES[rank])
        assert work.error(gradients, expected) <= 1e-5
        assert settings == [told] * 3


class TwoHeads(nets.Net):
    """One of them in each microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.other = torch.nn.Linear(nets.WIDTH, 11, bias=False)

    def forward(self, tokens, turn):
        layers = torch.nn.Sequential(self.embedding, *self.layers, self.other if turn % 2 else self.head)
        return layers(tokens)


def failed_first(rank, fails):
    """Gradients of a microbatch of the other head, after one of the first that failed in backward."""
    case = Case((2, 2), model=TwoHeads)
    with work.device(case) as (model, odc):
        if fails:
            hook = model.layers[2].register_forward_hook(lambda _m, _i, out: Trip.apply(out))
            with contextlib.suppress(ValueError):
                case.loss(model, rank, rank).backward()
            hook.remove()
        case.loss(model, rank, 1 - rank).backward()
        odc.settle()
        return work.whole_gradients(model)


def test_what_a_pass_that_failed_has_reached_counts_for_nothing(pools):
    expected = pools(2).run(failed_first, False)[0]
    assert expected["head.weight"] is None
    for found in pools(2).run(failed_first, True):
        assert work.error(found, expected) <= 1e-6
