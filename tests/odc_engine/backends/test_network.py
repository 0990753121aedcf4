"""Devices of several machines: meetings, who is missing, and one clock for all. Here the machines are one."""

import re
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from odc_engine.backends import patience
from odc_engine.backends.base import COMM, MAIN
from odc_engine.backends.network import Network
from odc_engine.devices import clocks
from odc_engine.errors import EngineError, PeerLost


def made(name: str, seconds: float = 0.0) -> Network:
    """`seconds`: of a group of its own, which breaks when somebody does not come."""
    store = PrefixStore(name, _get_default_store())
    group = dist.new_group(timeout=timedelta(seconds=seconds)) if seconds else None
    return Network(store, group, timeout=seconds or 30.0)


def told(call) -> tuple[list[int], str]:
    try:
        found = call()
    except PeerLost as lost:
        found = lost
    return (found.devices, str(found)) if isinstance(found, PeerLost) else ([], str(found))


def met(rank):
    net = made("met")
    if rank == 1:
        time.sleep(0.3)
    came = time.monotonic()
    net.meet(MAIN)
    left = time.monotonic()
    with pytest.raises(ValueError, match="room"):
        net.meet(COMM)
    return came, left


def test_nobody_goes_on_before_all_have_come(pools):
    came, left = zip(*pools(3).run(met), strict=True)  # one machine has one monotonic clock
    assert min(left) >= max(came)


def one_does_not_come(rank):
    net = made("does not come", 1.0)
    if rank != 2:
        return told(lambda: net.meet(MAIN))
    time.sleep(4.0)
    return None


@pytest.mark.slow
def test_who_does_not_come_is_named_by_all_others(pools):
    found = pools(3).run(one_does_not_come)
    for devices, line in found[:2]:
        assert devices == [2]
        assert re.fullmatch(r"device 2 did not answer within \d\.\d s: died, or wait longer with --timeout", line)
        assert 1.0 <= float(line.split()[6]) <= 4.0  # what it really waited


def one_fails(rank):
    net = made("fails")
    if rank == 1:
        net.fail(RuntimeError("out of memory"))
        net.fail(PeerLost([0], "died"))
        return None
    return told(net.explain)


def test_who_says_that_it_fails_is_named(pools):
    found = pools(3).run(one_fails)
    assert found[0] == found[2] == ([1], "device 1 failed: see there")


def one_is_silent(rank):
    net = made("silent")
    net.timeout = 0.4
    return told(net.explain) if rank else None


def test_who_is_silent_is_named(pools):
    found = pools(3).run(one_is_silent)
    assert found[1][0] == found[2][0] == [0]


def one_still_computes(rank):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "NOTICED", 0.2)
        net = made("computes")
        if rank == 2:
            time.sleep(0.8)
        return told(net.explain)


def test_who_still_computes_is_not_blamed(pools):
    assert pools(3).run(one_still_computes) == [([], "None")] * 3


def who_has_the_store(rank):
    net = made("has the store")
    if rank == 1:
        net.fail(RuntimeError("out of memory"))
        return 0.0
    began = time.perf_counter()
    if rank == 2:
        time.sleep(0.8)
    assert net.explain().devices == [1]
    return time.perf_counter() - began


def test_device_0_stays_until_the_others_have_read_the_store(pools):
    assert pools(3).run(who_has_the_store)[0] > 0.5


def all_are_there(_rank):
    return made("there").explain()


def test_where_nobody_is_missing_nobody_is_blamed(pools):
    assert pools(3).run(all_are_there) == [None] * 3


def store_gone(_rank):
    class Gone:
        def set(self, *_):
            raise RuntimeError("connection reset")

    net = Network(Gone())
    net.fail(RuntimeError())
    return str(net.explain()), isinstance(net.explain(), EngineError)


def test_without_the_store_device_0_is_blamed(pools):
    assert pools(2).run(store_gone)[0] == ("the store is gone: device 0 died, or the network to it", True)


def clock_behind(rank):
    return clocks.offset(clock=lambda: time.perf_counter() - 100.0 * rank)


def test_clocks_are_read_against_device_0_s(pools):
    """To half of what an answer takes, which on a loaded machine is some milliseconds."""
    assert pools(3).run(clock_behind) == pytest.approx([0.0, 100.0, 200.0], abs=0.1)
