"""Minibatches of an arena between processes that come late at drawn points, one of them far behind the others: what
each device sees that it should not. The order of calls is OnDemand's."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import shards
import torch
import torch.distributed as dist
from fake_nvshmem import FakeNvshmem

from odc_engine.backends import machines
from odc_engine.backends.base import MAIN
from odc_engine.backends.network import Network
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.backends.tcp.memory import TcpMemory
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena

UNITS = [
    UnitShape("a", 37, 37, torch.float32),
    UnitShape("b", 5, 0, torch.bfloat16),
    UnitShape("c", 64, 64, torch.bfloat16),
]


@dataclass(frozen=True)
class Kind:
    """An arena, and what moves its bytes. `machines`: devices on each, where a network is between them, which is TCP or
    else NVSHMEM's. `hierarchical`: what is published comes into a node unit by unit."""

    devices: int
    accumulate: str = "slots"
    machines: tuple[int, ...] = ()
    per_node: int | None = None
    hierarchical: bool = False
    kernels: bool = False
    tcp: bool = False

    def memory(self):
        if not self.tcp:
            host = SharedMemory(timeout=30.0)
            return NvshmemMemory(host, FakeNvshmem(self.machines)) if self.machines else host
        of_devices = [machine for machine, count in enumerate(self.machines) for _ in range(count)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machines, "here", lambda: f"machine {of_devices[dist.get_rank()]}")
            return TcpMemory(Network(timeout=30.0))

    def arena(self, memory):
        kind = FarArena if self.machines else Arena
        if self.kernels:
            shards.interpreted()
            from odc_engine.memory import gpu

            kind = gpu.FarGpuArena if self.machines else gpu.GpuArena
        return kind(memory, UNITS, self.accumulate, self.per_node)


KINDS = {
    "locked": Kind(3, "locked"),
    "slots": Kind(3),
    "nodes": Kind(4, per_node=2),
    "nodes, locked, hierarchical": Kind(4, "locked", per_node=2, hierarchical=True),
    "a network": Kind(3, machines=(2, 1)),
    "a network only": Kind(3, machines=(1, 1, 1)),
    "nodes over a network": Kind(4, machines=(2, 2), per_node=2),
    "nodes over a network, hierarchical": Kind(4, machines=(2, 2), per_node=2, hierarchical=True),
    "TCP": Kind(4, machines=(2, 1, 1), tcp=True),
    "nodes over TCP, locked, hierarchical": Kind(4, "locked", machines=(2, 2), per_node=2, hierarchical=True, tcp=True),
}


class Late:
    """Waits at drawn points, and much longer on one device."""

    def __init__(self, seed: int, rank: int, devices: int) -> None:
        slow = random.Random(seed).randrange(devices)
        self._drawn = random.Random(f"{seed} {rank}")
        self._longest = 8e-3 if rank == slow else 4e-4

    def __call__(self) -> None:
        if self._drawn.random() < 0.4:
            time.sleep(self._drawn.random() * self._longest)

    def around(self, thing: object, *names: str) -> None:
        """A wait before and after these calls."""
        for name in names:
            if call := getattr(thing, name, None):
                setattr(thing, name, self._late(call))

    def _late(self, call: Callable) -> Callable:
        def waiting(*args):
            self()
            found = call(*args)
            self()
            return found

        return waiting


def published(number: int, owner: int, unit: int) -> torch.Tensor:
    shape = UNITS[unit]
    return ((torch.arange(shape.gather) + 7 * number + 31 * owner + 3 * unit) % 251).to(shape.dtype)


def gradients(seed: int, number: int, device: int, m: int, unit: int, devices: int) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in any order."""
    drawn = torch.Generator().manual_seed(seed * 7919 + ((number * 16 + device) * 16 + m) * 8 + unit)
    found = torch.randint(-8, 9, (devices * UNITS[unit].push,), generator=drawn)
    return found.to(torch.float32 if m % 2 else UNITS[unit].dtype)


def seen(rank: int, kind: Kind, seed: int, left_out: Callable[..., None] | None = None, *args) -> list[str]:
    """What a device sees that is wrong. `left_out(arena, *args)` is done before anything is published."""
    with ExitStack() as opened:
        memory = kind.memory()
        opened.callback(memory.close)
        late = Late(seed, rank, kind.devices)
        arena = kind.arena(memory)
        late.around(memory, "check", "meet", "fetch_all", "send_all", "arrive")
        if left_out:
            left_out(arena, *args)
        push, bring = (Lane(kind, opened) for _ in range(2))
        wrong, drawn = [], random.Random(f"counts {seed}")
        for number in range(4):
            counts = [drawn.randrange(4) for _ in range(kind.devices)]
            _publish(kind, arena, number, late, bring)
            for m in range(counts[rank]):
                wrong += _microbatch(arena, (seed, number, m), late, push)
            push.drain()
            bring.drain()
            wrong += _settle(arena, (seed, number), counts, late)
        memory.meet(MAIN)
        return wrong


class Lane:
    """Calls one after the other, at once or beside the caller's own."""

    def __init__(self, kind: Kind, opened: ExitStack) -> None:  # the interpreter of kernels knows one thread
        self._pool = None if kind.kernels else opened.enter_context(ThreadPoolExecutor(1))
        self._given = []

    def give(self, call: Callable, *args) -> None:
        if self._pool is None:
            call(*args)
        else:
            self._given.append(self._pool.submit(call, *args))

    def drain(self) -> None:
        while self._given:
            self._given.pop(0).result()


def _publish(kind: Kind, arena: Arena, number: int, late: Late, bring: Lane) -> None:
    memory = arena.memory
    for unit in range(len(UNITS)):
        arena.weights(memory.rank, unit).copy_(published(number, memory.rank, unit))
        late()
        if arena.nodes == 1:
            arena.clear(unit)
    if arena.nodes > 1 and not kind.hierarchical:
        memory.meet(MAIN)
        arena.fetch()
    memory.meet(MAIN)
    if kind.hierarchical:
        arena.begin()
        for unit in range(len(UNITS)):
            bring.give(arena.bring, unit)


def _microbatch(arena: Arena, at: tuple[int, int, int], late: Late, push: Lane) -> list[str]:
    wrong, (seed, number, m), rank = [], at, arena.memory.rank
    for unit, shape in enumerate(UNITS):
        late()
        devices = arena.memory.size
        out = torch.full((devices * shape.gather,), -1.0, dtype=shape.dtype)
        arena.gather(unit, out)
        expected = torch.cat([published(number, owner, unit) for owner in range(devices)])
        if not torch.equal(out, expected):
            wrong.append(f"{number}: weights of {shape.name}")
        if shape.push:
            push.give(arena.push, unit, gradients(seed, number, rank, m, unit, devices))
    return wrong


def _settle(arena: Arena, at: tuple[int, int], counts: list[int], late: Late) -> list[str]:
    wrong, (seed, number), rank = [], at, arena.memory.rank
    arena.complete()
    arena.notes(rank, 8).fill_(10 * number + rank)
    late()
    arena.meet()
    if arena.every_note(8).tolist() != [[10 * number + device] * 8 for device in range(len(counts))]:
        wrong.append(f"{number}: notes")
    late()
    if arena.offer_sums():
        arena.meet()
    arena.sum_nodes()
    for unit, shape in enumerate(UNITS):
        own = slice(rank * shape.push, (rank + 1) * shape.push)
        total = torch.zeros(shape.push, dtype=torch.float64)
        for device, count in enumerate(counts):
            for m in range(count):
                total += gradients(seed, number, device, m, unit, len(counts))[own].double()
        if shape.push and not torch.equal(arena.gradients(unit).double(), total):
            wrong.append(f"{number}: sums of {shape.name}")
    return wrong
