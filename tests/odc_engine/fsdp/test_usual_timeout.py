"""How long a device that is late is waited for, where a loop says nothing of it."""

import time
from datetime import timedelta
from types import SimpleNamespace

import nets
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.constants import default_pg_timeout
from work import Case, shard

from odc_engine import OnDemand
from odc_engine.errors import PeerLost
from odc_engine.fsdp.usual_timeout import usual_timeout

SAID = 91.0


def said(_rank, seconds, how):
    """What OnDemand takes, where the process group was told so many seconds."""
    world = dist.group.WORLD
    before = world._get_backend(torch.device("cpu")).options._timeout
    world.set_timeout(timedelta(seconds=seconds))
    odc = OnDemand(shard(case := Case((1, 1)), case.fresh()), **how)
    world.set_timeout(before)
    odc.close()
    return odc.memory.timeout


def test_a_loop_waits_as_long_as_its_process_group(pools):
    assert pools(2).run(said, SAID, {}) == [SAID] * 2
    assert pools(2).run(said, SAID, {"timeout": 7.0}) == [7.0] * 2


def test_a_torch_that_does_not_tell_waits_as_long_as_it_usually_does(monkeypatch):
    torchs = SimpleNamespace(group=SimpleNamespace(WORLD=object()))
    monkeypatch.setattr("odc_engine.fsdp.usual_timeout.dist", torchs)
    assert usual_timeout(nn.Linear(1, 1)) == default_pg_timeout.total_seconds()


def trained(rank, seconds, how):
    """Whether somebody is lost where rank 0 saves, compiles, or has more to compute."""
    model = shard(case := Case((1, 1)), case.fresh())
    odc = OnDemand(model, **how)
    nets.loss(model, rank, 0, 0).backward()
    if rank == 0:
        time.sleep(seconds)
    try:
        odc.settle()
    except PeerLost as lost:
        return lost.devices
    finally:
        odc.close()
    return []


@pytest.mark.parametrize(("how", "lost"), [({}, []), ({"timeout": 0.2}, [0])], ids=["torch", "the loop"])
def test_who_is_late_is_waited_for_as_long_as_was_said(pools, how, lost):
    assert pools(2).run(trained, 0.6, how)[1] == lost
