"""How long a device that is late is waited for, where a loop says nothing of it."""

import contextlib
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
from odc_engine.fsdp.inside import usual_timeout


def said(_rank, how):
    """What OnDemand takes, where the process group was told so many seconds."""
    world = dist.group.WORLD
    before = world._get_backend(torch.device("cpu")).options._timeout
    world.set_timeout(timedelta(seconds=91.0))
    odc = OnDemand(shard(case := Case((1, 1)), case.fresh()), **how)
    world.set_timeout(before)
    odc.close()
    return odc.memory.timeout


def test_a_loop_waits_as_long_as_its_process_group_or_as_torch_usually_does(pools, monkeypatch):
    assert pools(2).run(said, {}) == [91.0] * 2
    assert pools(2).run(said, {"timeout": 7.0}) == [7.0] * 2
    torch_that_does_not_tell = SimpleNamespace(group=SimpleNamespace(WORLD=object()))
    monkeypatch.setattr("odc_engine.fsdp.inside.dist", torch_that_does_not_tell)
    assert usual_timeout(nn.Linear(1, 1)) == default_pg_timeout.total_seconds()


def lost(rank, how):
    """Who is, where rank 0 saves, compiles, or has more to compute."""
    model = shard(case := Case((1, 1)), case.fresh())
    with contextlib.closing(OnDemand(model, **how)) as odc:
        nets.loss(model, rank, 0, 0).backward()
        time.sleep(0 if rank else 0.6)
        try:
            odc.settle()
        except PeerLost as error:
            return error.devices
    return []


@pytest.mark.parametrize(("how", "devices"), [({}, []), ({"timeout": 0.2}, [0])], ids=["torch", "the loop"])
def test_who_is_late_is_waited_for_as_long_as_was_said(pools, how, devices):
    assert pools(2).run(lost, how)[1] == devices
