"""FSDP2's hybrid sharding, replicas of shards: what is one replica's affair, and what is everybody's."""

from functools import partial

import nets
import pytest
import work
from own_loops import HYBRID, sharded
from short_memory import OutOfMemory, batch, loss
from torch import nn
from work import Case

from odc_engine import OnDemand, check
from odc_engine.backends import shm
from odc_engine.errors import PeerLost
from odcsim.errors import InputError


def refused(rank: int) -> list[bool]:
    """One device drops its gradients, then publishes where others settle; then a minibatch that is right."""
    model = sharded(HYBRID)
    odc = OnDemand(model, timeout=20)
    found = []
    nets.loss(model, rank, 0).backward()
    if rank == 3:
        model.zero_grad()
    for call in (odc.settle, odc.publish if rank < 2 else odc.settle, odc.settle):
        found.append(work.refused(call))
        odc.publish()
        nets.loss(model, rank, 0).backward()
    odc.publish()
    odc.close()
    return found


def test_a_refusal_in_one_replica_is_one_in_all(pools):
    assert pools(4).run(refused) == [[True, True, False]] * 4


def no_room(rank):
    """On one of two machines, whose replica it is. Who is named."""

    def refuse(_nbytes):
        raise InputError("no room", fix="make some")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 2:
            patch.setattr(shm.memory, "check_room", refuse)
        try:
            OnDemand(sharded(HYBRID), timeout=20)
        except InputError:
            return rank
        except PeerLost as error:
            return error.devices[0]
    return None


def test_what_one_replica_has_no_room_for_no_other_begins(pools):
    found = pools(4).run(no_room)
    assert found[1] in (2, 3)
    assert [found[rank] for rank in (0, 2, 3)] == [2] * 3


def out_of_memory(rank: int) -> tuple[float, float]:
    model = sharded(HYBRID)
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


def test_out_of_memory_in_one_replica_is_its_own_affair(pools):
    for unsplit, split in pools(4).run(out_of_memory):
        assert split == pytest.approx(unsplit, rel=1e-6)


def stock_after(rank: int) -> dict:
    model = sharded(HYBRID)
    odc = OnDemand(model, timeout=20)
    with check(odc):
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
