"""How fast devices of this machine gather and push, against collectives over the same memory, gloo, and plain copying.

Rates count the bytes of the full tensor, all shards together, over the time of the slowest device. A copy reads and
writes each byte once, and so does a gather. A push reads the gradients, and reads and writes the sums: three passes for
the copy's two, so it cannot reach a copy's rate where memory is the limit. Times are of single processes, each kept on
one core as far as there are cores, all at work at once.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine import launch
from odc_engine.arena import Arena, UnitShape
from odc_engine.backends.base import MAIN
from odc_engine.backends.shm import SharedMemory
from odc_engine.collective import all_gather, reduce_scatter
from odc_engine.errors import EngineError
from odc_engine.plan import check_rates
from odc_engine.run import hardware

CEILING = "memcpy, all"
WAYS = (
    "memcpy, one",
    CEILING,
    "torch copy, all",
    "gather",
    "gather, lockstep",
    "gather, gloo",
    "push, locked",
    "push, slots",
    "push, lockstep",
    "push, gloo",
)
TIMEOUT = 600.0
MOVED = 16 << 20  # bytes that each device moves between two readings of the clock, so that meetings do not show
MOST = 128  # transfers between two readings, where that would be more
ROUNDS = (5, 100)  # the best of at least and at most so many, since a busy machine interrupts most of them
SLOW = 16  # a collective that copies through sockets is given that many times fewer

Move = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Rate:
    """One way to move bytes, at its best round."""

    way: str
    devices: int
    bytes: int  # of the full tensor
    seconds: float  # of the slowest device in the best round
    gb_per_second: float
    of_memcpy: float  # over the rate of a memcpy by all devices at once, in the same run


def bandwidth(devices: Sequence[int], sizes: Sequence[int], as_json: bool) -> int:
    """Measure and print. Not 0 where a device failed."""
    check_rates(devices, sizes)
    every: list[Rate] = []
    for n in devices:
        code, found = rates(n, sizes)
        if code:
            return code
        if found and not as_json:
            print(as_text(found), flush=True)
        every += found
    if every and as_json:
        print(json.dumps({"schema": 1, "hardware": hardware(), "rates": [asdict(r) for r in every]}, indent=2))
    return 0


def rates(devices: int, sizes: Sequence[int]) -> tuple[int, list[Rate]]:
    """Start devices and measure. The exit code, and what was found; under torchrun device 0 alone has it."""
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        path = Path(folder) / "rates.json"
        code = launch.run(_measure, devices, TIMEOUT, tuple(sizes), str(path))
        return code, [Rate(**entry) for entry in json.loads(path.read_text())] if path.exists() else []


def _measure(memory: SharedMemory, sizes: tuple[int, ...], path: str) -> None:
    rates: list[Rate] = []
    pin(memory.rank)
    for size in sizes:
        rates += measured(size)
        if memory.rank == 0 and sys.stderr.isatty():
            print(f"{dist.get_world_size()} devices: {_named(size)} done", file=sys.stderr, flush=True)
    if memory.rank == 0:
        Path(path).write_text(json.dumps([asdict(r) for r in rates]))


def pin(rank: int) -> None:
    """Keep this thread on a core of its own where there are enough. Threads that gloo has started stay free."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def measured(size: int) -> list[Rate]:
    """Every way at one size. All devices call it together; each gets the rates."""
    bench = _Bench(size)
    ways = bench.ways()
    rounds = max(ROUNDS[0], min(ROUNDS[1], (1 << 29) // size))
    seconds = torch.zeros(len(ways), rounds, dtype=torch.float64)
    try:
        bench.prove()
        for r in range(rounds):  # round by round, so that a busy spell of the machine hits all ways alike
            for i, (move, repeats) in enumerate(ways.values()):
                seconds[i, r] = bench.timed(move, repeats)
    finally:
        bench.close()
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    best = dict(zip(ways, seconds.amin(dim=1).tolist(), strict=True))
    devices = dist.get_world_size()
    return [Rate(way, devices, size, s, size / s / 1e9, best[CEILING] / s) for way, s in best.items()]


class _Bench:
    """What is moved at one size, and everything it is moved by."""

    def __init__(self, size: int) -> None:
        self.rank, self.devices, self.count = dist.get_rank(), dist.get_world_size(), size // 4
        self.part = self.count // self.devices
        self.memory: list[SharedMemory] = []
        self.locked, self.slots = self._arena("locked"), self._arena("slots")
        self.whole, self.spare = torch.ones(self.count), torch.zeros(self.count)
        # Small whole numbers: their sums are exact, in whatever order.
        self.base = (torch.arange(self.count) % 7 + 1).float()
        self.gradients = self.base * (self.rank + 1)
        self.own = self.base[: self.part].clone()
        self.locked.weights(self.rank, 0).copy_(self._shard(self.base))

    def _arena(self, accumulate: str) -> Arena:
        memory = SharedMemory()
        self.memory.append(memory)
        return Arena(memory, [UnitShape("unit", self.part, self.part, torch.float32)], accumulate)

    def _shard(self, whole: Tensor) -> Tensor:
        return whole[self.rank * self.part : (self.rank + 1) * self.part]

    def ways(self) -> dict[str, tuple[Move, int]]:
        """What is measured, and how often between two readings of the clock."""
        many = max(1, min(MOST, MOVED // (4 * self.count)))
        few = max(1, many // SLOW)
        meet = self.memory[0].meet

        here, there = self.whole.numpy(), self.spare.numpy()

        def memcpy() -> None:
            np.copyto(there, here)

        def after_meeting(move: Move) -> Move:
            def moved() -> None:
                meet(MAIN)
                move()

            return moved

        def gather() -> None:
            self.locked.gather(0, self.spare)

        def push() -> None:
            self.locked.push(0, self.gradients)

        moves: list[tuple[Move, int]] = [
            (memcpy if self.rank == 0 else lambda: None, many),
            (memcpy, many),
            (lambda: self.spare.copy_(self.whole), many),
            (gather, many),
            (after_meeting(gather), many),
            (lambda: all_gather(self.spare, self.own), few),
            (push, many),
            (lambda: self.slots.push(0, self.gradients), many),
            (after_meeting(push), many),
            (lambda: reduce_scatter(self.own, self.gradients), few),
        ]
        return dict(zip(WAYS, moves, strict=True))

    def timed(self, move: Move, repeats: int) -> float:
        self.memory[0].meet(MAIN)
        for _ in range(-(-repeats // 4)):  # until the caches hold this way's bytes and not those of the one before
            move()
        start = time.perf_counter()
        for _ in range(repeats):
            move()
        return (time.perf_counter() - start) / repeats

    def prove(self) -> None:
        """That every way moves what it should, once."""
        self.memory[0].meet(MAIN)  # everybody's shard is in place
        expected = self._shard(self.base) * (self.devices * (self.devices + 1) // 2)
        self.spare.zero_()
        self.locked.gather(0, self.spare)
        _same("gather", self.spare, self.base)
        for arena in (self.locked, self.slots):
            arena.push(0, self.gradients)
        for name, arena in (("push, locked", self.locked), ("push, slots", self.slots)):
            self.memory[0].meet(MAIN)
            _same(name, arena.gradients(0), expected)
            arena.clear(0)
        self.own.copy_(self._shard(self.base))
        all_gather(self.spare.zero_(), self.own)
        _same("gather, gloo", self.spare, self.base)
        reduce_scatter(self.own, self.gradients)
        _same("push, gloo", self.own, expected)
        self.memory[0].meet(MAIN)

    def close(self) -> None:
        for memory in self.memory:
            memory.close()


def _same(way: str, found: Tensor, expected: Tensor) -> None:
    if not torch.equal(found, expected):
        raise EngineError(f"{way} of {found.numel()} elements is wrong: do not trust this machine's transport")


def _named(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def as_text(rates: Sequence[Rate]) -> str:
    """Two tables of one number of devices: rates, and rates over plain copying."""
    sizes = list(dict.fromkeys(r.bytes for r in rates))
    ways = list(dict.fromkeys(r.way for r in rates))
    found = {(r.way, r.bytes): r for r in rates}
    head = "".join(f"{_named(s):>9}" for s in sizes)
    return "\n".join(
        [
            f"{f'{rates[0].devices} devices, GB/s':<20}{head}",
            *(f"{w:<20}" + "".join(f"{found[w, s].gb_per_second:>9.2f}" for s in sizes) for w in ways),
            "",
            f"{'over ' + CEILING:<23}{head[3:]}",
            *(f"{w:<20}" + "".join(f"{found[w, s].of_memcpy:>9.0%}" for s in sizes) for w in ways if "memcpy" not in w),
            "",
        ]
    )
