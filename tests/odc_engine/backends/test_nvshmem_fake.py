"""The stand-in for NVSHMEM refuses what the library would end the process for, and shows what would go wrong there
without a word: what the tests over it would not see otherwise."""

import os
import threading

import pytest
import torch
from fake_nvshmem import GARBAGE, LIFE, Ended, FakeNvshmem, forget

from odc_engine.backends.nvshmem import library as nvshmem_library


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


def on_another_thread(call):
    raised = []

    def run():
        try:
            call()
        except Ended as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    raise raised[0]


def after_its_end(library, mine, call):
    library.stop(mine)
    call()


def with_other_ids(library):
    LIFE.devices.close()
    LIFE.running = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvshmem_library.dist, "broadcast_object_list", lambda *_, **__: None)
        library._join(None)


def of_others(library):
    LIFE.running, LIFE.ranks = False, (0,)
    LIFE.devices.close()
    library.process.running = False
    library.start(None, 64)


def with_multicast(library):
    library.machines = (2,)
    os.environ["NVSHMEM_DISABLE_NVLS"] = "0"
    LIFE.running = False
    LIFE.devices.close()
    try:
        LIFE.begin(None, (2,))
    finally:
        os.environ["NVSHMEM_DISABLE_NVLS"] = "1"


STRAY = torch.zeros(64, dtype=torch.uint8)


def beyond(library, mine):
    library._calls.getmem_nbi_on_stream(mine.data_ptr(), mine.data_ptr() + 1000, 64, 0, 7)


WRONG = {  # of a device, its library and its arena
    "a get into what is no heap": lambda _, lib, mine: lib.get_nbi(STRAY, mine[:64], 0),
    "a put of what is no heap": lambda _, lib, mine: lib.put_nbi(mine[:64], STRAY, 0),
    "a get beyond the arena": lambda _, lib, mine: beyond(lib, mine),
    "a device that is none": lambda _, lib, mine: lib.get_nbi(mine[:64], mine[64:128], 2),
    "a quiet after the end": lambda _, lib, mine: after_its_end(lib, mine, lib.quiet),
    "a meeting after the end": lambda _, lib, mine: after_its_end(lib, mine, lib.meet),
    "an allocation after the end": lambda _, lib, mine: after_its_end(lib, mine, lambda: lib._host.nvshmem_malloc(8)),
    "a get after the end": lambda _, lib, mine: after_its_end(lib, mine, lambda: lib.get_nbi(STRAY, STRAY, 0)),
    "a free of a part": lambda _, lib, mine: lib._host.nvshmem_free(mine[64:].data_ptr()),
    "a free for the second time": lambda _, lib, mine: [lib._host.nvshmem_free(mine.data_ptr()) for _ in range(2)],
    "an end before all is freed": lambda _, lib, __: lib._host.nvshmemx_hostlib_finalize(),
    "an end on another thread": lambda _, lib, __: on_another_thread(lib._host.nvshmemx_hostlib_finalize),
    "a free on another thread": lambda _, lib, mine: on_another_thread(lambda: lib._host.nvshmem_free(mine.data_ptr())),
    "sizes that are not alike": lambda rank, lib, _: lib.allocate(64 * (1 + rank)),
    "more than the heap has": lambda _, lib, __: lib._host.nvshmem_malloc(LIFE.heap),
    "a second start": lambda _, lib, __: lib._join(None),
    "a start over others": lambda _, lib, __: of_others(lib),
    "a start with other ids": lambda _, lib, __: with_other_ids(lib),
    "multicast of a GPU that two share": lambda _, lib, __: with_multicast(lib),
    "a meeting of a team": lambda _, lib, __: lib._calls.barrier_on_stream(0, 7),
    "a wait for a signal": lambda _, lib, mine: lib._calls.signal_wait_until_on_stream(mine.data_ptr(), 0, 1, 7),
}


def refused(rank, library, mine, name):
    try:
        WRONG[name](rank, library, mine)
    except Ended as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", WRONG)
def test_what_would_end_the_process_or_lose_bytes_is_raised(pools, name):
    assert all(pools(2).run(as_new, refused, name))


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
