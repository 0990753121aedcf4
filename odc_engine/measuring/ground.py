"""What `bandwidth` moves, on the ground that a device stands on: this machine's CPU, or a GPU of its own."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.backend import Processes
from odc_engine.backends.base import COMM, MAIN, Collectives, Host, PeerMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import EngineError
from odc_engine.fsdp.collective import all_gather, reduce_scatter
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.arenas import arena_on
from odc_engine.places.streams import lasted

MOST = 128  # transfers between two readings of the clock
SLOW = 16  # a collective that copies through sockets is given that many times fewer

Move = Callable[[], object]


class Ground(ABC):
    """`host`: the same devices as processes, for the backend's rival."""

    ceiling: str  # the way that others are held against: every device copies
    copied: tuple[str, ...]  # the first ways
    moved: int  # bytes that each device moves between two readings of the clock, so that meetings do not show
    slow: int  # so many times fewer by the rival
    rounds: int  # at most

    def __init__(self, backend: Processes, host: Host) -> None:
        assert backend.rival is not None
        self._backend, self._rival, self.ways = backend, backend.rival.memory(host), ways(backend)
        assert isinstance(self._rival, Collectives)
        self.device, self.group = self._rival.device, self._rival.group

    def memory(self) -> PeerMemory:
        memory = self._backend.memory(SharedMemory())
        assert isinstance(memory, PeerMemory)
        return memory

    @abstractmethod
    def copies(self, here: Tensor, there: Tensor) -> list[Move]:
        """The first ways."""

    @abstractmethod
    def timed(self, move: Move, repeats: int) -> float:
        """Seconds of one move of so many."""

    def close(self) -> None:
        self._rival.close()


LOCKED = "push, locked"


def named(copies: tuple[str, ...], rival: str) -> tuple[str, ...]:
    gathers = ("gather", "gather, lockstep", f"gather, {rival}")
    return (*copies, *gathers, LOCKED, "push, slots", "push, lockstep", f"push, {rival}")


class CpuGround(Ground):
    ceiling = "memcpy, all"
    copied = ("memcpy, one", ceiling, "torch copy, all")
    moved, slow, rounds = 16 << 20, SLOW, 100

    def copies(self, here: Tensor, there: Tensor) -> list[Move]:
        source, target = here.numpy(), there.numpy()

        def memcpy() -> None:
            np.copyto(target, source)

        return [memcpy if dist.get_rank() == 0 else lambda: None, memcpy, lambda: there.copy_(here)]

    def timed(self, move: Move, repeats: int) -> float:
        for _ in range(-(-repeats // 4)):  # until the caches hold this way's bytes and not those of the one before
            move()
        start = time.perf_counter()
        for _ in range(repeats):
            move()
        return (time.perf_counter() - start) / repeats


class GpuGround(Ground):
    """All by the GPU's own clock."""

    ceiling = "copy, all"
    copied = (ceiling,)
    moved, slow, rounds = 1 << 30, 1, 20

    def copies(self, here: Tensor, there: Tensor) -> list[Move]:
        return [lambda: there.copy_(here)]

    def timed(self, move: Move, repeats: int) -> float:
        return lasted(move, repeats)


GROUNDS: dict[str, type[Ground]] = {"cpu": CpuGround, "cuda": GpuGround}  # by what computes


def ways(backend: Processes) -> tuple[str, ...]:
    """What is measured of a backend, in words."""
    return named(GROUNDS[backend.device].copied, backend.rival.library if backend.rival else "")


class Bench:
    """What is moved at one size, and everything it is moved by."""

    def __init__(self, size: int, ground: Ground) -> None:
        self.ground = ground
        self.rank, self.devices, self.count = dist.get_rank(), dist.get_world_size(), size // 4
        self.part = self.count // self.devices
        self.memory: list[PeerMemory] = []
        self.slots = self._arena("slots")
        self.adds = not self.memory[0].why_not_add
        self.locked = self._arena("locked" if self.adds else "slots")
        self.whole, self.spare = torch.ones(2, self.count, device=ground.device)
        # Small whole numbers: their sums are exact, in whatever order.
        self.base = (torch.arange(self.count, device=ground.device) % 7 + 1).float()
        self.gradients = self.base * (self.rank + 1)
        self.own = self.base[: self.part].clone()
        self.locked.weights(self.rank, 0).copy_(self._shard(self.base))

    def _arena(self, accumulate: str) -> Arena:
        memory = self.ground.memory()
        self.memory.append(memory)
        return arena_on(memory, [UnitShape("unit", self.part, self.part, torch.float32)], accumulate, None)

    def _shard(self, whole: Tensor) -> Tensor:
        return whole[self.rank * self.part : (self.rank + 1) * self.part]

    def ways(self) -> dict[str, tuple[Move, int]]:
        """What is measured, and how often between two readings of the clock. Where links lose what is added over them,
        nothing is `locked`: what meets for its transfers has slots then, too."""
        many = max(1, min(MOST, self.ground.moved // (4 * self.count)))
        few = max(1, many // self.ground.slow)
        meet, copies = self.memory[0].meet, self.ground.copies(self.whole, self.spare)

        def after_meeting(move: Move) -> Move:
            def moved() -> None:
                meet(COMM)
                move()

            return moved

        def gather() -> None:
            self.locked.gather(0, self.spare)

        def push() -> None:
            self.locked.push(0, self.gradients)

        moves: list[tuple[Move, int]] = [
            *((copy, many) for copy in copies),
            (gather, many),
            (after_meeting(gather), many),
            (self._all_gather, few),
            (push, many),
            (lambda: self.slots.push(0, self.gradients), many),
            (after_meeting(push), many),
            (self._reduce_scatter, few),
        ]
        named = dict(zip(self.ground.ways, moves, strict=True))
        return {way: move for way, move in named.items() if self.adds or way != LOCKED}

    def _all_gather(self) -> None:
        all_gather(self.spare, self.own, group=self.ground.group)

    def _reduce_scatter(self) -> None:
        reduce_scatter(self.own, self.gradients, group=self.ground.group)

    def timed(self, move: Move, repeats: int) -> float:
        self.memory[0].meet(MAIN)
        return self.ground.timed(move, repeats)

    def prove(self) -> None:
        """That every way moves what it should, once."""
        self.memory[0].meet(MAIN)  # everybody's shard is in place
        expected = self._shard(self.base) * (self.devices * (self.devices + 1) // 2)
        self.spare.zero_()
        self.locked.gather(0, self.spare)
        same("gather", self.spare, self.base)
        for arena in (self.locked, self.slots):
            arena.push(0, self.gradients)
            arena.complete()
        for name, arena in (("push, lockstep", self.locked), ("push, slots", self.slots)):
            self.memory[0].meet(MAIN)
            same(name, arena.gradients(0), expected)
            arena.clear(0)
        self.own.copy_(self._shard(self.base))
        self.spare.zero_()
        self._all_gather()
        same("gather by collectives", self.spare, self.base)
        self._reduce_scatter()
        same("push by collectives", self.own, expected)
        self.memory[0].meet(MAIN)

    def close(self) -> None:
        for memory in self.memory:
            memory.close()


def same(way: str, found: Tensor, expected: Tensor) -> None:
    if not torch.equal(found, expected):
        raise EngineError(f"{way} of {found.numel()} elements is wrong: do not trust this machine's transport")
