"""The stand-in for NVSHMEM refuses what the library would end the process for, which the tests over it would not see
otherwise. That it brings bytes as late as it may is seen where a wait is left out (memory/test_interleavings)."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from fake_nvshmem import LIFE, Ended, FakeNvshmem, forget


def told(_rank, name):
    """By a call of a library that was started over two machines of one device and has 1024 bytes."""
    forget()
    library = FakeNvshmem((1, 1), grows=False)
    library.start(None, 1024)
    mine = library.allocate(1024)
    if name.startswith("after the end"):
        library.stop(mine)
    call = partial(WRONG[name], library, library._host, mine)
    try:
        if name.startswith("on another thread"):
            with ThreadPoolExecutor(1) as other:
                other.submit(call).result()
        else:
            call()
    except Ended as error:
        return type(error)
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


@pytest.mark.parametrize("name", WRONG)
def test_what_would_end_the_process_or_lose_bytes_is_raised(pools, name):
    assert pools(2).run(told, name) == [Ended, Ended]
