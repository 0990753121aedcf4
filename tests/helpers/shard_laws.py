"""What the kernels must do, for arenas that are tensors of one process: on a CPU under Triton's interpreter, and on a
GPU. Everything beside what a kernel may write is looked at, too."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FILL = 0x5A  # in bytes that no kernel may touch
GUARD = 8  # elements on either side of a dense tensor
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Case:
    """Shards of so many devices, and a launch that moves them."""

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

    def launch(self, transfers: Any) -> Any:
        return transfers.Launch(self.block, self.programs, 4)

    def shards(self, transfers: Any, arenas: Sequence[Tensor]) -> Any:
        table = transfers.table([arena.data_ptr() for arena in arenas], self.where)
        return transfers.Shards(table, self.rank, self.offset, self.n)


def drawn(seed: int, where: str, largest: int, blocks: Sequence[int], programs: tuple[int, int]) -> Case:
    """Sizes come in all kinds of alignment."""
    rng = random.Random(seed)
    devices = rng.randint(1, 4)
    sizes = rng.randrange(devices), rng.randint(0, largest), 16 * rng.randint(0, 5), rng.choice(blocks)
    return Case(devices, *sizes, rng.randint(*programs), rng.choice(DTYPES), rng.choice(DTYPES), seed, where)


def numbers(case: Case, count: int, salt: int = 0) -> Tensor:
    """Of all sizes and both signs, exact in both dtypes: the interpreter cuts bf16 off where a GPU rounds."""
    generator = torch.Generator().manual_seed(case.seed + salt)
    drawn = torch.randn(count, generator=generator) * 10.0 ** torch.randint(-6, 7, (count,), generator=generator)
    return drawn.bfloat16().float().to(case.where)


def whole_numbers(case: Case, count: int, salt: int = 0) -> Tensor:
    """Whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(case.seed + salt)
    return torch.randint(-100, 101, (count,), generator=generator).float().to(case.where)


def arenas_of(case: Case, slots: int = 1) -> list[Tensor]:
    """Everybody's, filled, with room for so many shards in fp32 and something behind."""
    size = case.offset + slots * stride(case) + 64
    every = [torch.empty(size + 16, dtype=torch.uint8, device=case.where).fill_(FILL) for _ in range(case.devices)]
    return [arena[-arena.data_ptr() % 16 :][:size] for arena in every]


def stride(case: Case) -> int:
    return -(-4 * case.n // 16) * 16


def shard_of(case: Case, arena: Tensor, dtype: torch.dtype = torch.float32, slot: int = 0) -> Tensor:
    start = case.offset + slot * stride(case)
    return arena[start : start + case.n * dtype.itemsize].view(dtype)


def guarded(case: Case, values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A dense tensor that lies within a larger one."""
    room = torch.full((values.numel() + 2 * GUARD,), 77.0, dtype=dtype, device=case.where)
    room[GUARD : GUARD + values.numel()] = values.to(dtype)
    return room, room[GUARD : GUARD + values.numel()]


def check_gather(transfers: Any, case: Case) -> None:
    arenas, expected = arenas_of(case), numbers(case, case.devices * case.n)
    for arena, part in zip(arenas, expected.view(case.devices, case.n), strict=True):
        shard_of(case, arena, case.published).copy_(part)
    before = [arena.clone() for arena in arenas]
    room, out = guarded(case, torch.zeros_like(expected), case.dense)
    transfers.gather(case.shards(transfers, arenas), out, case.published, case.launch(transfers))
    assert torch.equal(room, guarded(case, expected, case.dense)[0])
    assert all(map(torch.equal, arenas, before))


def check_add(transfers: Any, case: Case, times: int) -> None:
    arenas, wanted = arenas_of(case), arenas_of(case)
    for arena in (*arenas, *wanted):
        shard_of(case, arena).fill_(3.0)
    for salt in range(times):
        values = whole_numbers(case, case.devices * case.n, salt)
        room, gradients = guarded(case, values, case.dense)
        before = room.clone()
        transfers.add(case.shards(transfers, arenas), gradients, case.launch(transfers))
        assert torch.equal(room, before)
        for arena, part in zip(wanted, values.view(case.devices, case.n), strict=True):
            shard_of(case, arena).add_(part)
    assert all(map(torch.equal, arenas, wanted))


def check_sums(transfers: Any, case: Case, times: int) -> None:
    """Fractions, which round: as far from a sum in 64 bits as so many additions in 32 may lead."""
    arenas = arenas_of(case)
    wanted, size = torch.zeros(2, case.devices, case.n, dtype=torch.float64, device=case.where)
    for arena in arenas:
        shard_of(case, arena).zero_()
    for salt in range(times):
        values = numbers(case, case.devices * case.n, salt)
        transfers.add(case.shards(transfers, arenas), values.to(case.dense), case.launch(transfers))
        wanted += values.view(case.devices, case.n)
        size += values.view(case.devices, case.n).abs()
    found = torch.stack([shard_of(case, arena) for arena in arenas])
    assert ((found - wanted).abs() <= times * 2**-23 * size).all()


def check_far_apart(transfers: Any, where: str, writers: int, size: int) -> None:
    """Few elements in slots that lie as far apart as those of a large unit. What is between them is not touched."""
    case = Case(writers, 0, 48, 0, 16, 2, torch.float32, torch.float32, 0, where)
    slots = torch.empty(writers * size // 4, dtype=torch.float32, device=where)
    expected = torch.zeros(case.n, device=where)
    for writer in range(writers):
        values = numbers(case, case.n, writer)
        slots[writer * size // 4 :][: case.n].copy_(values)
        expected = values if writer == 0 else expected + values
    transfers.total(slots, writers, case.n, slots, case.launch(transfers))
    assert torch.equal(slots[: case.n], expected)


def check_long(transfers: Any, where: str, n: int) -> None:
    """Shards of so many elements: every device's number stands everywhere in its own, and nowhere else."""
    devices = 4
    table, arenas = transfers.table, [torch.zeros(n, device=where) for _ in range(devices)]
    place = transfers.Shards(table([arena.data_ptr() for arena in arenas], where), 1, 0, n)
    whole = torch.empty(devices * n, dtype=torch.bfloat16, device=where)
    for device, part in enumerate(whole.view(devices, n)):
        part.fill_(device + 1)
    transfers.write(place, whole, first=True)
    transfers.add(place, whole)
    assert all((arena == 2 * device + 2).all() for device, arena in enumerate(arenas))
    transfers.gather(place, whole.zero_(), torch.float32)
    assert all((part == 2 * device + 2).all() for device, part in enumerate(whole.view(devices, n)))


def check_write(transfers: Any, case: Case, times: int) -> None:
    arenas, wanted = arenas_of(case), arenas_of(case)
    for salt in range(times):
        values = numbers(case, case.devices * case.n, salt)
        gradients = values.to(case.dense)
        transfers.write(case.shards(transfers, arenas), gradients, first=salt == 0, launch=case.launch(transfers))
        for arena, part in zip(wanted, values.view(case.devices, case.n), strict=True):
            shard_of(case, arena).copy_(part if salt == 0 else shard_of(case, arena) + part)
    assert all(map(torch.equal, arenas, wanted))


def summed(transfers: Any, case: Case, order: Sequence[int], *, in_place: bool = False) -> Tensor:
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


def check_total(transfers: Any, case: Case, order: Sequence[int]) -> None:
    """The same bits whatever order writers came in: those of adding one after the other by device."""
    expected = numbers(case, case.n, 0)
    for writer in range(1, len(order)):
        expected = expected + numbers(case, case.n, writer)
    assert torch.equal(summed(transfers, case, order), expected.view(torch.int32))
    assert torch.equal(summed(transfers, case, order, in_place=True), expected.view(torch.int32))


def check_streams(transfers: Any) -> None:
    """Many streams add at once and lose nothing. Whole numbers: exact in any order."""
    n, writers = 1 << 16, 8
    sums = torch.zeros(n, device="cuda")
    place = transfers.Shards(transfers.table([sums.data_ptr()], "cuda"), 0, 0, n)
    stream: Any = torch.cuda.Stream  # torch has no types for it
    streams = [stream() for _ in range(writers)]
    given = [(torch.arange(n, device="cuda") % 100 + writer).float() for writer in range(writers)]
    torch.cuda.synchronize()
    for _ in range(20):
        for each, gradients in zip(streams, given, strict=True):
            with torch.cuda.stream(each):
                transfers.add(place, gradients)
    torch.cuda.synchronize()
    assert torch.equal(sums, 20.0 * torch.stack(given).sum(0))


def check_rounding(transfers: Any) -> None:
    """bf16 is rounded to the nearest, where the interpreter cuts off."""
    shard = torch.randn(1 << 14, device="cuda")
    out = torch.empty_like(shard, dtype=torch.bfloat16)
    place = transfers.Shards(transfers.table([shard.data_ptr()], "cuda"), 0, 0, shard.numel())
    transfers.gather(place, out, torch.float32)
    assert torch.equal(out, shard.bfloat16())
