"""The stand-in for NVSHMEM refuses what the library would end the process for, and shows what would go wrong there
without a word: what the tests over it would not see otherwise."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fake_nvshmem import GARBAGE, LIFE, Ended, FakeNvshmem, forget


def as_new(rank, call, *args):
    """`call` with the library started over two machines of one device, on this thread, and 1024 bytes."""
    forget()
    try:
        library = FakeNvshmem((1, 1), grows=False)
        library.start(None, 1024)
        mine = library.allocate(1024)
        return call(rank, library, mine, *args)
    finally:
        forget()


def beyond(library, mine):
    library._calls.getmem_nbi_on_stream(mine.data_ptr(), mine.data_ptr() + 1000, 64, 0, 7)


def of_others(library):
    LIFE.running, LIFE.ranks = False, (0,)
    LIFE.devices.close()
    library.process.running = False
    library.start(None, 64)


STRAY = torch.zeros(64, dtype=torch.uint8)
WRONG = {  # of a library, its host library and a device's arena
    "a get into what is no heap": lambda lib, _, mine: lib.get_nbi(STRAY, mine[:64], 0),
    "a put of what is no heap": lambda lib, _, mine: lib.put_nbi(mine[:64], STRAY, 0),
    "a get beyond the arena": lambda lib, _, mine: beyond(lib, mine),
    "a device that is none": lambda lib, _, mine: lib.get_nbi(mine[:64], mine[64:128], 2),
    "after the end, a quiet": lambda lib, *_: lib.quiet(),
    "after the end, a meeting": lambda lib, *_: lib.meet(),
    "after the end, an allocation": lambda _, host, __: host.nvshmem_malloc(8),
    "after the end, a get": lambda lib, *_: lib.get_nbi(STRAY, STRAY, 0),
    "a free of a part": lambda _, host, mine: host.nvshmem_free(mine[64:].data_ptr()),
    "a free for the second time": lambda _, host, mine: [host.nvshmem_free(mine.data_ptr()) for _ in range(2)],
    "an end before all is freed": lambda _, host, __: host.nvshmemx_hostlib_finalize(),
    "on another thread, the end": lambda _, host, __: host.nvshmemx_hostlib_finalize(),
    "on another thread, a free": lambda _, host, mine: host.nvshmem_free(mine.data_ptr()),
    "sizes that are not alike": lambda lib, *_: lib.allocate(64 * (1 + LIFE.rank)),
    "more than the heap has": lambda _, host, __: host.nvshmem_malloc(LIFE.heap),
    "a second start": lambda lib, *_: lib._join(None),
    "a start over others": lambda lib, *_: of_others(lib),
    "a meeting of a team": lambda lib, *_: lib._calls.barrier_on_stream(0, 7),
    "a wait for a signal": lambda lib, _, mine: lib._calls.signal_wait_until_on_stream(mine.data_ptr(), 0, 1, 7),
}


def ended(_rank, library, mine, name):
    if name.startswith("after the end"):
        library.stop(mine)
    try:
        if name.startswith("on another thread"):
            with ThreadPoolExecutor(1) as other:
                other.submit(WRONG[name], library, library._host, mine).result()
        else:
            WRONG[name](library, library._host, mine)
    except Ended:
        return True
    return False


@pytest.mark.parametrize("name", WRONG)
def test_what_would_end_the_process_or_lose_bytes_is_raised(pools, name):
    assert pools(2).run(as_new, ended, name) == [True, True]


def moved(rank, library, mine, times):
    """Of so many puts to the other device: how many a load finds there before a meeting, how many a get does before the
    quiet and behind it, and how many bytes of what was sent came as they were then. And what lies where a get goes."""
    other, counts = 1 - rank, {"loads": 0, "gets": 0, "early": 0, "changed": 0}
    target, source, back = mine[:64], mine[64:128], mine[128:192]
    for number in range(times):
        target.zero_()
        library.meet()
        source.fill_(number + 1)
        library.put_nbi(target, source, other)
        if number % 2:
            source.fill_(200)  # before the quiet
        library.get_nbi(back, target, other)
        assert back.unique().tolist() == [GARBAGE]
        library.quiet()
        counts["early"] += back[0].item() != 0
        library.get_nbi(back, target, other)
        library.quiet()
        counts["gets"] += back[0].item() != 0
        counts["changed"] += back[0].item() == 200
        LIFE.devices.meet(1)  # all have quieted, and have not met through the library
        counts["loads"] += target[0].item() != 0
        library.meet()
        assert target[0].item() in (number + 1, 200)
        library.meet()
    library.stop(mine)
    return counts


def test_what_is_put_is_read_late_and_found_by_a_get_behind_the_quiet_and_by_a_load_behind_a_meeting(pools):
    times = 40
    for counts in pools(2).run(as_new, moved, times):
        assert counts["gets"] == times
        assert 0 < counts["loads"] < times
        assert 0 < counts["changed"] <= times / 2
        assert counts["early"] < times
