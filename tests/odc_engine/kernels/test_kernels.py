"""The kernels under Triton's interpreter, against torch: alone, and in memory that two processes share.

A process interprets kernels or compiles them, so these run in processes of their own.
"""

import pytest
import shards
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odc_engine.backends.base import MAIN
from odc_engine.backends.shm.memory import SharedMemory

BLOCK = 8192  # so large that a sum that is read, added to and written back would lose what came meanwhile
ELEMENTS = 2 * BLOCK + 193  # some chunks and a tail
PUSHES = 10

LAWS = {  # what holds of each kernel, and what is drawn beside the case
    "gather": (shards.check_gather, ()),
    "add": (shards.check_add, (st.integers(0, 3),)),
    "add of fractions": (shards.check_sums, (st.integers(1, 4),)),
    "write": (shards.check_write, (st.integers(1, 3),)),
    "total": (shards.check_total, (st.integers(1, 5).flatmap(lambda n: st.permutations(range(n))),)),
}


def cases_that_held(_rank, kernel):
    """How many, each of them looked at to its end; the first that does not hold is told instead."""
    check, beside = LAWS[kernel]
    held = []

    @settings(max_examples=30, derandomize=True, deadline=None, database=None)
    @given(shards.cases(), st.tuples(*beside))
    def law(case, values):
        check(shards.interpreted(), case, *values)
        held.append(case)

    law()
    return len(held)


@pytest.mark.parametrize("kernel", LAWS)
def test_every_size_and_place(pools, kernel):
    assert pools(1).run(cases_that_held, kernel) == [30]


def far_apart(_rank, writers, size):
    shards.check_far_apart(shards.interpreted(), "cpu", writers, size)
    return "held"


@pytest.mark.parametrize("size", [400 << 20, 640 << 20])
def test_slots_may_end_behind_two_and_four_gigabytes(pools, size):
    """Memory that nobody touches is none."""
    assert pools(1).run(far_apart, 8, size) == ["held"]


def two_processes(rank):
    """Both push into both arenas at once, time and again, then look at what has come."""
    transfers = shards.interpreted()
    memory = SharedMemory(timeout=30.0)
    memory.allocate(4 * ELEMENTS)
    memory.view(rank).zero_()
    table = transfers.table([memory.view(device).data_ptr() for device in range(2)])
    memory.meet(MAIN)
    for i in range(PUSHES):
        pushed = torch.arange(2.0 * ELEMENTS) + i + 1000 * rank
        transfers.add(transfers.Shards(table, rank, 0, ELEMENTS), pushed, transfers.Launch(BLOCK, programs=4))
    memory.meet(MAIN)
    sums = memory.view(rank)[: 4 * ELEMENTS].view(torch.float32).tolist()
    memory.meet(MAIN)
    memory.close()
    return sums


def test_two_processes_add_to_each_others_memory_and_lose_nothing(pools):
    """Whole numbers: exact in any order."""
    for rank, sums in enumerate(pools(2).run(two_processes)):
        own = torch.arange(2.0 * ELEMENTS)[rank * ELEMENTS : (rank + 1) * ELEMENTS]
        assert sums == (2 * PUSHES * own + PUSHES * (PUSHES - 1) + 1000 * PUSHES).tolist()


def meetings(rank, rounds, absent):
    """Each round, what the other had told before it came. The last one without device `absent`."""
    transfers = shards.interpreted()
    memory = SharedMemory(timeout=30.0)
    memory.allocate(64)
    memory.view(rank).zero_()
    table = transfers.table([memory.view(device).data_ptr() for device in range(2)])
    flags, missing = transfers.Shards(table, rank, 16, 2), torch.zeros(2, dtype=torch.int32)
    told = [memory.view(device)[:4].view(torch.int32) for device in range(2)]
    memory.meet(MAIN)
    found = []
    for count in range(1, rounds + 1):
        told[rank].fill_(count)
        transfers.meet(flags, count, 1_000_000, missing)
        found.append(int(told[1 - rank]))
    on_time = missing.tolist()
    memory.meet(MAIN)
    if rank != absent:
        transfers.meet(flags, rounds + 1, 50, missing)
        for count in range(rounds + 2, rounds + 5):  # so many looks would take days
            transfers.meet(flags, count, 2**31 - 1, missing)
    memory.meet(MAIN)
    memory.close()
    return found, on_time, missing.tolist()


def test_devices_meet_on_their_streams_and_notice_who_does_not_come(pools):
    """Once: meetings that were given already wait for nobody who is gone."""
    rounds = 40
    for rank, (found, on_time, missing) in enumerate(pools(2).run(meetings, rounds, 1)):
        # It had come, and may have told of the next round meanwhile.
        assert all(count <= seen <= count + 1 for count, seen in enumerate(found, 1))
        assert on_time == [0, 0]
        assert missing == ([0, 1] if rank == 0 else [0, 0])


NO_TWO_SHARDS = {  # of 4 elements
    "2 shards of 4": [torch.zeros(7), torch.zeros(8, 2)[:, 0]],
    "float16": [torch.zeros(8, dtype=torch.float16)],
}


def test_what_does_not_fit_is_refused_before_a_launch():
    from odc_engine.kernels import transfers

    one, two = transfers.table([16]), transfers.Shards(transfers.table([16, 32]), 0, 0, 4)
    for word, wholes in NO_TWO_SHARDS.items():
        for whole in wholes:
            with pytest.raises(ValueError, match=word):
                transfers.gather(two, whole, torch.float32)
            with pytest.raises(ValueError, match=word):
                transfers.add(two, whole)
    for word, call in {
        "0x28": lambda: transfers.table([0x10, 0x28]),  # arenas that are not aligned
        "offset 8": lambda: transfers.Shards(one, 0, 8, 1),
        "-1": lambda: transfers.Shards(one, 0, 0, -1),
        "2147418112": lambda: transfers.Launch(block=4096).grid(2**41, 8),  # more chunks than can be counted
        "2 slots of 5": lambda: transfers.total(torch.zeros(8), 2, 5, torch.zeros(5)),
    }.items():
        with pytest.raises(ValueError, match=word):
            call()


def test_work_is_spread_over_programs():
    from odc_engine.kernels import transfers

    launch = transfers.Launch(block=64, programs=10)
    assert [launch.grid(n, 2) for n in (0, 1, 65, 640)] == [(1,), (2,), (4,), (10,)]
    assert transfers.Launch(block=4096).turns(2**33 + 1, 8) == 8 * (2**21 + 1)
