"""NVSHMEM as a process has it: one, over the devices of its first start.

Whoever starts it once more, over whatever devices, gets those of the first start, without a word, and in NVSHMEM 3.4.5
even after its end. Its environment, where the heap's size stands, it reads at the first start, and on device 0 with
each id. So several arenas of a process share one NVSHMEM, of the same devices and on one GPU, and others are refused.
It ends with the last arena, and may start anew: with the same devices and the same heap.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist

from odc_engine.backends.aside import Aside
from odc_engine.backends.nvshmem.heap import EXTRA, HEAP, check_heap, heap_size
from odcsim.errors import InputError


class Process:
    """What this process has asked of NVSHMEM."""

    def __init__(self) -> None:
        self.devices: tuple[int, ...] = ()  # of the first start, as ranks of torch's world, in NVSHMEM's order
        self.gpu: int | None = None
        self.heap = 0  # bytes, as the first start was told
        self.arenas: list[int] = []  # bytes of each that there is
        self.running = False
        self._aside: Aside | None = None
        self._users: Counter[Aside] = Counter()  # arenas that have it

    def enter(self) -> Aside:
        """The thread that starts NVSHMEM and ends it, for all arenas of a time."""
        if self._aside is None:
            self._aside = Aside()
        self._users[self._aside] += 1
        return self._aside

    def give_up(self, aside: Aside) -> None:
        """It may wait without end, and the next arena had better have another."""
        if self._aside is aside:
            self._aside = None

    def leave(self, aside: Aside) -> None:
        self._users[aside] -= 1
        if not self._users[aside]:
            self.give_up(aside)
            aside.end()

    def check(self, nbytes: int, *, grows: bool) -> None:
        """Refuse an arena that its heap has no room for. `grows`: the GPU maps memory to it as it is asked for."""
        if not self.heap:
            check_heap(nbytes)
        elif not grows and (need := sum(self.arenas) + nbytes + EXTRA) > self.heap:
            raise InputError(
                f"this process has started NVSHMEM with a heap of {self.heap / 1e6:.0f} MB, which has no room for"
                f" another arena of {nbytes / 1e6:.0f} MB",
                fix=f"set {HEAP}={need} before the program starts",
            )

    @contextmanager
    def starting(self, nbytes: int) -> Iterator[None]:
        """Within, the environment has the heap's size: what somebody has given, or room for the first arena."""
        given = os.environ.get(HEAP)
        self.heap = self.heap or heap_size() or nbytes + EXTRA
        os.environ[HEAP] = str(self.heap)
        os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")  # a GPU that devices share is bound to one multicast object
        try:
            yield
        finally:
            os.environ.pop(HEAP)
            if given is not None:
                os.environ[HEAP] = given


PROCESS = Process()


def ranks_of(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))


def check_devices(group: dist.ProcessGroup | None, process: Process, gpu: int | None) -> None:
    """Refuse on all devices of a group alike where one has NVSHMEM running, or had, over others or on another GPU."""
    mine = ranks_of(group)
    told = [(process.devices, process.gpu)] * len(mine)
    dist.all_gather_object(told, (process.devices, process.devices != () and process.gpu != gpu), group=group)
    for rank, (devices, moved) in zip(mine, told, strict=True):
        if devices not in ((), mine):
            raise InputError(
                f"this model is sharded over ranks {_words(mine)}, and rank {rank} has started NVSHMEM over ranks"
                f" {_words(devices)}, which it keeps",
                fix="shard all models of a process over the same ranks, or give each processes of its own",
            )
        if moved:
            raise InputError(
                f"rank {rank} has started NVSHMEM on another GPU, which it keeps", fix="keep a process on one GPU"
            )


def _words(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
