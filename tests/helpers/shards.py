"""What the kernels must do, for arenas that are tensors of one process: on a CPU under Triton's interpreter, and on a
GPU. Everything beside what a kernel may write is looked at, too."""

import importlib.util
import os
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

FILL = 0x5A  # in bytes that no kernel may touch
GUARD = 8  # elements on either side of a dense tensor
DTYPES = (torch.float32, torch.bfloat16)


def triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted():
    """The calls, of kernels that run on a CPU from now on, and in this process: Triton looks when it first sees one."""
    os.environ["TRITON_INTERPRET"] = "1"
    return importlib.import_module("odc_engine.kernels.transfers")


@dataclass(frozen=True)
class Case:
    devices: int
    rank: int
    n: int
    offset: int
    block: int
    programs: int
    published: torch.dtype
    dense: torch.dtype
    seed: int
    where: str = "cpu"

    def launch(self, transfers):
        return transfers.Launch(self.block, self.programs, 4)

    def shards(self, transfers, arenas):
        table = transfers.table([arena.data_ptr() for arena in arenas], self.where)
        return transfers.Shards(table, self.rank, self.offset, self.n)


@st.composite
def cases(draw, where="cpu", largest=200, blocks=(16, 64), programs=(1, 7)):
    devices = draw(st.integers(1, 4))
    return Case(
        devices,
        draw(st.integers(0, devices - 1)),
        draw(st.integers(0, largest)),
        16 * draw(st.integers(0, 5)),
        draw(st.sampled_from(blocks)),
        draw(st.integers(*programs)),
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(DTYPES)),
        draw(st.integers(0, 2**31)),
        where,
    )


def numbers(case, count, salt=0):
    """Of all sizes and both signs, exact in both dtypes: the interpreter cuts bf16 off where a GPU rounds."""
    generator = torch.Generator().manual_seed(case.seed + salt)
    drawn = torch.randn(count, generator=generator) * 10.0 ** torch.randint(-6, 7, (count,), generator=generator)
    return drawn.bfloat16().float().to(case.where)


def whole_numbers(case, count, salt=0):
    """Whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(case.seed + salt)
    return torch.randint(-100, 101, (count,), generator=generator).float().to(case.where)


def arenas_of(case, slots=1):
    """Everybody's, filled, with room for so many shards in fp32 and something behind."""
    size = case.offset + slots * stride(case) + 64
    every = [torch.empty(size + 16, dtype=torch.uint8, device=case.where).fill_(FILL) for _ in range(case.devices)]
    return [arena[-arena.data_ptr() % 16 :][:size] for arena in every]


def stride(case):
    return -(-4 * case.n // 16) * 16


def shard_of(case, arena, dtype=torch.float32, slot=0):
    start = case.offset + slot * stride(case)
    return arena[start : start + case.n * dtype.itemsize].view(dtype)


def guarded(case, values, dtype):
    """A dense tensor that lies within a larger one."""
    room = torch.full((values.numel() + 2 * GUARD,), 77.0, dtype=dtype, device=case.where)
    room[GUARD : GUARD + values.numel()] = values.to(dtype)
    return room, room[GUARD : GUARD + values.numel()]


def check_gather(transfers, case):
    arenas, expected = arenas_of(case), numbers(case, case.devices * case.n)
    for arena, part in zip(arenas, expected.view(case.devices, case.n), strict=True):
        shard_of(case, arena, case.published).copy_(part)
    before = [arena.clone() for arena in arenas]
    room, out = guarded(case, torch.zeros_like(expected), case.dense)
    transfers.gather(case.shards(transfers, arenas), out, case.published, case.launch(transfers))
    assert torch.equal(room, guarded(case, expected, case.dense)[0])
    assert all(map(torch.equal, arenas, before))


def check_add(transfers, case, times):
    arenas, wanted = arenas_of(case), arenas_of(case)
    for arena, other in zip(arenas, wanted, strict=True):
        shard_of(case, arena).fill_(3.0)
        shard_of(case, other).fill_(3.0)
    for salt in range(times):
        values = whole_numbers(case, case.devices * case.n, salt)
        room, gradients = guarded(case, values, case.dense)
        before = room.clone()
        transfers.add(case.shards(transfers, arenas), gradients, case.launch(transfers))
        assert torch.equal(room, before)
        for arena, part in zip(wanted, values.view(case.devices, case.n), strict=True):
            shard_of(case, arena).add_(part)
    assert all(map(torch.equal, arenas, wanted))


def check_write(transfers, case, times):
    arenas, wanted = arenas_of(case), arenas_of(case)
    for salt in range(times):
        values = numbers(case, case.devices * case.n, salt)
        gradients = values.to(case.dense)
        transfers.write(case.shards(transfers, arenas), gradients, first=salt == 0, launch=case.launch(transfers))
        for arena, part in zip(wanted, values.view(case.devices, case.n), strict=True):
            shard_of(case, arena).copy_(part if salt == 0 else shard_of(case, arena) + part)
    assert all(map(torch.equal, arenas, wanted))


def summed(transfers, case, order, *, in_place=False):
    """The sum of slots, as bits, of numbers whose sum depends on the order in which they are added."""
    arena, *_ = arenas_of(case, len(order))
    table = transfers.table([arena.data_ptr()], case.where)
    for writer in order:
        shards = transfers.Shards(table, 0, case.offset + writer * stride(case), case.n)
        transfers.write(shards, numbers(case, case.n, writer), first=True, launch=case.launch(transfers))
    slots = arena[case.offset : case.offset + len(order) * stride(case)].view(torch.float32)
    room, out = guarded(case, torch.zeros(case.n, device=case.where), torch.float32)
    before = room.clone()
    transfers.total(slots, len(order), case.n, slots if in_place else out, case.launch(transfers))
    assert torch.equal(room[:GUARD], before[:GUARD])
    assert torch.equal(room[-GUARD:], before[-GUARD:])
    return (slots[: case.n] if in_place else out).view(torch.int32)


def check_total(transfers, case, order):
    """The same bits whatever order writers came in: those of adding one after the other by device."""
    expected = numbers(case, case.n, 0)
    for writer in range(1, len(order)):
        expected = expected + numbers(case, case.n, writer)
    assert torch.equal(summed(transfers, case, order), expected.view(torch.int32))
    assert torch.equal(summed(transfers, case, order, in_place=True), expected.view(torch.int32))
