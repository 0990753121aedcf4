"""Taking from a queue that devices share: every number goes to one of them, and nobody takes where they meet."""

import threading
import time

import torch

from odc_engine import OnDemand
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.backends.shm.peers import TAKEN
from odc_engine.backends.threads.memory import Team, ThreadMemory
from odcsim.errors import InputError


def take_many(memory, times):
    found = []
    for _ in range(2):
        memory.meet(0)
        found.append([memory.take() for _ in range(times)])
        memory.meet(0)
        if memory.rank == 0:
            memory.refill()
    return found


def slowly(peers):
    """Time for others to come between reading the count and writing it, unless a lock holds them off."""
    word = peers._words[0][TAKEN:]
    taken = int(word[0])
    time.sleep(1e-4)
    word[0] = taken + 1
    return taken


def take_in_a_process(_rank, times):
    memory = SharedMemory(timeout=30.0)
    memory.peers.take = lambda: slowly(memory.peers)
    found = take_many(memory, times)
    memory.meet(0)
    memory.close()
    return found


def test_every_number_goes_to_one_device(pools):
    for every in (pools(3).run(take_in_a_process, 100), on_three_threads(lambda memory: take_many(memory, 100))):
        for turn in range(2):
            lists = [device[turn] for device in every]
            assert sorted(n for numbers in lists for n in numbers) == list(range(300))
            assert all(numbers == sorted(numbers) for numbers in lists)


def on_three_threads(work):
    team, found = Team(3, 10.0), {}
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: work(ThreadMemory(team, rank))}))
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [found[rank] for rank in range(3)]


def refusals(_rank):
    """Of take() in the library."""
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    told = []
    for meets in (False, True):
        comm = OnDemand(fully_shard(nn.Linear(2, 2)), meets=meets)
        if not meets:
            told.append(comm.take())
            comm.settle()
        try:
            comm.take()
        except InputError as error:
            told.append(str(error))
        comm.memory.meet(0)
        comm.close()
    return told


def test_nobody_takes_where_devices_meet(pools):
    found = pools(2).run(refusals)
    assert sorted(first for first, *_ in found) == [0, 1]
    for _, *told in found:
        assert told == ["take() with collectives; take between publish() and settle(), without `meets`"] * 2
