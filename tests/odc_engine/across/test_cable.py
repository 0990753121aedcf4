"""A network that comes back within the timeout ends no run, whatever was under way: weights are as ever."""

import threading
import time
from functools import partial

import nets
import pytest
import torch
import torch.distributed as dist
import work
from machine_pool import before
from own_loops import FULL, HYBRID, sharded

from odc_engine import OnDemand

pytestmark = pytest.mark.slow

TIMEOUT = 10.0
PLACES = {  # of the cut in each minibatch, and its seconds; systems repeat what was lost after 6.2 and 12.6
    FULL: [("", 0.0), ("gather", 8.0), ("push", 6.0), ("meet", 6.0)],
    HYBRID: [("settle", 6.0), ("all_reduce", 8.0), ("", 0.0)],
}


def training(rank, mesh, folder):
    """Without a folder, without an outage."""
    model = sharded(mesh)
    odc = OnDemand(model, timeout=TIMEOUT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    owners = {"gather": odc.arena, "push": odc.arena, "settle": odc, "meet": odc.memory, "all_reduce": dist}
    for number, (place, _) in enumerate(PLACES[mesh]):
        if folder and place and rank == 2:
            before(owners[place], place, partial(away, folder / f"{number}"))
        for m in range(1 + rank % 2):
            nets.loss(model, rank, m, number).backward()
        odc.settle()
        optimizer.step()
        optimizer.zero_grad()
        odc.publish()
    odc.close()
    return work.whole_parameters(model)


def away(cut):
    """While the network is."""
    cut.touch()
    while cut.exists():
        time.sleep(0.02)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("mesh", PLACES)
def test_an_outage_shorter_than_the_timeout_changes_nothing(machines, tmp_path, mesh):
    pool = machines(2, 2)
    expected = pool.run(training, mesh, None)
    made, cuts, over = pool.machines, [], threading.Event()

    def pull():
        while not over.wait(0.02):
            for wanted in tmp_path.iterdir():
                made.unplug(1)
                cuts.append(wanted.name)
                wanted.unlink()
                if not over.wait(PLACES[mesh][int(wanted.name)][1]):
                    made.plug(1)

    hand = threading.Thread(target=pull)
    hand.start()
    try:
        found = pool.run(training, mesh, tmp_path, timeout=180.0)
    finally:
        over.set()
        hand.join()
    assert sorted(cuts) == [str(number) for number, (place, _) in enumerate(PLACES[mesh]) if place]
    for mine, theirs in zip(found, expected, strict=True):
        assert work.error(mine, theirs) < 1e-6


def the_last_minibatch(rank, strike):
    model = sharded(FULL)
    odc = OnDemand(model, timeout=TIMEOUT)
    nets.loss(model, rank, 0).backward()
    if rank == 2:
        strike()
        time.sleep(1.0)
    odc.settle()
    odc.publish()
    odc.close()
    dist.destroy_process_group()


def test_who_ends_while_the_network_is_away_is_not_taken_for_dead(machines, tmp_path):
    """Others wait in the last meeting for words that it has sent before."""

    def pull(made):
        made.unplug(1)
        threading.Timer(8.0, made.plug, [1]).start()

    fates = machines(2, 2).fates(the_last_minibatch, fault=pull, folder=tmp_path, limit=60.0)
    assert [(fate.code, fate.words) for fate in fates if fate.code != 0] == []
