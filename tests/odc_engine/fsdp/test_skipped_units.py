"""A unit that a device does not use moves no byte there, forward or backward, whatever FSDP2 was told before."""

import nets
import pytest
import work
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
    odc = OnDemand(model, recorder=moved, timeout=30)
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
