"""The rival whose buffers FSDP2 registers with NCCL: what it does itself is wrapped, timed and taken out again."""

import pytest
import torch
import torch.distributed as dist
import work
from torch.distributed.fsdp import FSDPModule
from work import Case

from odc_engine.fsdp.collective import Collective, all_gather, reduce_scatter
from odc_engine.fsdp.inside import REGISTERING
from odc_engine.runs.verify import BOUND

CASE = Case((2, 2), sync="collective", backend="torch")


class Registered:
    """Stands in for FSDP2's own, which takes a GPU: gives memory of its own, and counts."""

    def __init__(self, move):
        self.move, self.memory, self.moved = move, [], 0

    def allocate(self, size, *, dtype, device):
        self.memory.append(torch.empty(size, dtype=dtype, device=device))
        return self.memory[-1]

    def __call__(self, output, source, **how):
        held = (output, source)
        assert any(part.untyped_storage().data_ptr() == one.data_ptr() for one in self.memory for part in held)
        self.moved += 1
        return self.move(output, source, **how)


def own(module):
    """FSDP2's group of a module; a list of them from torch 2.13 on."""
    state = module._get_fsdp_state()
    return state._fsdp_param_groups[0] if hasattr(state, "_fsdp_param_groups") else state._fsdp_param_group


def trained(rank):
    made = []

    def registering(module):
        group = own(module)
        assert group.force_sum_reduction_for_comms  # else FSDP2 registers nothing for reductions
        made.extend([Registered(all_gather), Registered(reduce_scatter)])
        group._all_gather_comm, group._reduce_scatter_comm = made[-2:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FSDPModule, REGISTERING, registering, raising=False)
        model = work.shard(CASE, CASE.fresh())
        stock = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
        before = [type(own(unit)._all_gather_comm) for unit in stock]
        comm = Collective(model, registered=True)
        work.minibatch(CASE, rank, model, comm)
        found = work.whole_gradients(model)
        comm.close()
        assert before == [type(own(unit)._all_gather_comm) for unit in stock]
    dist.barrier()
    return found, [each.moved > 0 for each in made]


def test_gradients_are_those_of_one_process_and_all_of_it_moves_by_fsdp2s_own(pools):
    expected = work.reference(CASE)
    for found, moved in pools(2).run(trained):
        assert work.error(found, expected) <= BOUND
        assert moved == [True] * 8


def refused(_rank):
    with work.hidden(REGISTERING):
        return work.refused(lambda: Collective(work.shard(CASE, CASE.fresh()), registered=True))


def test_a_torch_that_has_none_is_refused(pools):
    assert pools(2).run(refused) == [True] * 2
