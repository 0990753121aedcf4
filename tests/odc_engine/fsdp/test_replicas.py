"""FSDP2's hybrid sharding, replicas of shards: equal to one process, whatever each device runs."""

from functools import partial

import nets
import pytest
import torch
import work
from short_memory import OutOfMemory, batch, loss
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from work import Case

from odc_engine import OnDemand, check
from odc_engine.backends import shm
from odc_engine.errors import PeerLost
from odc_engine.fsdp.collective import Collective
from odcsim.errors import InputError

COUNTS = ((3, 1, 0, 2), (0, 0, 2, 1), (1, 1, 1, 1))


def sharded(model: nn.Module, shape: tuple[int, int] = (2, 2)) -> nn.Module:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fresh(model=nets.Net) -> nn.Module:
    return Case((1,), model=model).fresh()


def trained(rank: int, made, attached: bool, average: bool) -> dict[str, torch.Tensor]:
    model = sharded(fresh(made))
    odc = OnDemand(model, timeout=20, average=average)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if attached:
        odc.attach(optimizer)
        optimizer.zero_grad()
    for number, counts in enumerate(COUNTS):
        for m in range(counts[rank]):
            (nets.loss(model, rank, m, number) * (4 if average else 1)).backward()
        if not attached:
            odc.settle()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        if not attached:
            odc.publish()
    with check(odc):
        nets.loss(model, rank, 0).backward()
        odc.settle()
    optimizer.zero_grad()
    odc.publish()
    odc.close()
    return work.whole_parameters(model)


def alone(made) -> dict[str, torch.Tensor]:
    model = fresh(made).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, counts in enumerate(COUNTS):
        for rank, count in enumerate(counts):
            for m in range(count):
                nets.loss(model, rank, m, number).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


@pytest.mark.parametrize(
    ("made", "attached", "average"),
    [(nets.Net, False, False), (nets.Net, True, True), (nets.Choosy, True, False), (nets.Half, False, True)],
)
def test_training_is_as_in_one_process(pools, made, attached, average):
    expected = alone(made)
    every = pools(4).run(trained, made, attached, average)
    for found in every:
        assert work.error(found, expected) < 1e-5
        assert all(torch.equal(found[name], every[0][name]) for name in found)


def refused(rank: int) -> list[str]:
    """One device drops its gradients, then publishes where others settle; then a minibatch that is right."""
    model = sharded(fresh())
    odc = OnDemand(model, timeout=20)
    words = []
    nets.loss(model, rank, 0).backward()
    if rank == 3:
        model.zero_grad()
    words.append(work.told(odc.settle))
    odc.publish()
    words.append(work.told(odc.publish if rank < 2 else odc.settle))
    odc.publish()
    nets.loss(model, rank, 0).backward()
    words.append(work.told(odc.settle))
    odc.publish()
    odc.close()
    return words


def test_a_refusal_in_one_replica_is_one_in_all(pools):
    for dropped, mixed, right in pools(4).run(refused):
        assert dropped.startswith("device 3: the gradient of embedding.weight was dropped before settle()")
        assert mixed.startswith("device 0 called publish(), device 1 called publish(), device 2 called settle()")
        assert right == "nothing was refused"


def out_of_memory(rank: int) -> tuple[float, float]:
    model = sharded(fresh())
    odc = OnDemand(model, timeout=20)
    norms = []
    for points in [(), (350,)]:
        with OutOfMemory(*(points if rank == 2 else ())) as memory:
            odc.retry(memory.arming(partial(loss, model)), batch(rank))
        odc.settle()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1e9).full_tensor().item())
        odc.publish()
    odc.close()
    return tuple(norms)


def one_has_no_room(rank):
    """On one of two machines, whose replica it is."""

    def refuse(_nbytes):
        raise InputError("no room", fix="make some")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 2:
            patch.setattr(shm.memory, "check_room", refuse)
        try:
            OnDemand(sharded(fresh()), timeout=20)
        except (InputError, PeerLost) as error:
            return str(error).splitlines()[0]
    return ""


def test_what_one_replica_has_no_room_for_no_other_begins(pools):
    found = pools(4).run(one_has_no_room)
    assert found[2].startswith("no room")
    assert found[3] == found[0] == "device 2 failed: its own error says why"
    assert found[1] in ("device 2 failed: its own error says why", "device 3 failed: its own error says why")


def test_out_of_memory_in_one_replica_is_its_own_affair(pools):
    for unsplit, split in pools(4).run(out_of_memory):
        assert split == pytest.approx(unsplit, rel=1e-6)


def stock_after(rank: int) -> dict[str, torch.Tensor]:
    model = sharded(fresh())
    odc = OnDemand(model, timeout=20)
    for m in range(1 + rank):
        nets.loss(model, rank, m).backward()
    odc.settle()
    odc.publish()
    odc.close()
    nets.loss(model, rank, 0).backward()
    return work.whole_gradients(model)


def test_close_puts_stock_hybrid_sharding_back(pools):
    expected = {name: g / 4 for name, g in work.reference(Case((1, 1, 1, 1))).items()}
    for found in pools(4).run(stock_after):
        assert work.error(found, expected) < 1e-5


def told(_: int) -> tuple[str, str]:
    lone = sharded(fresh(), (4, 1))
    return work.told(lambda: OnDemand(lone)), work.told(lambda: Collective(sharded(fresh())))


def test_what_is_not_carried_is_refused_with_a_way_out(pools):
    for alone, collective in pools(4).run(told):
        assert (
            alone
            == "the mesh has replicas of one device each, so that nothing is sharded; shard over more than one device"
        )
        assert collective.endswith("reduces over replicas inside backward; use OnDemand, or a one-dimensional mesh")


# Tensor parallel beside it.


def tensor_parallel(rank: int) -> tuple[dict[str, torch.Tensor], str, str]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model, data = fresh(), rank // 2
    for layer in model.layers:
        parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["data"])
    odc = OnDemand(fully_shard(model, mesh=mesh["data"]), average=False, timeout=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    odc.attach(optimizer)
    for number, counts in enumerate(UNEVEN):
        for m in range(counts[data]):
            nets.loss(model, data, m, number).backward()
        optimizer.step()
        optimizer.zero_grad()
    with check(odc):
        nets.loss(model, data, 0).backward()
        odc.settle()
    optimizer.zero_grad()
    nets.loss(model, data, 0).backward()
    if rank == 3:
        model.zero_grad()
    words = work.told(odc.settle), work.told(lambda: odc.retry(partial(loss, model), batch(rank)))
    odc.publish()
    odc.close()
    return work.whole_parameters(model), *words


UNEVEN = ((3, 1), (0, 2))


def test_tensor_parallel_trains_as_one_process(pools):
    model = fresh().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, counts in enumerate(UNEVEN):
        work.reference(Case(counts), number, model)
        optimizer.step()
        optimizer.zero_grad()
    for found, dropped, retried in pools(4).run(tensor_parallel):
        assert work.error(found, dict(model.named_parameters())) < 1e-5
        assert "device 3 called zero_grad()" in dropped
        assert retried.startswith("retry() under tensor parallel")
