"""Calls of the kernels with tensors: what is checked before anything runs, and how much of a GPU a transfer takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from odc_engine.kernels import device
from odc_engine.kernels.calls import call

ALIGN = 16  # bytes that one instruction moves, and to which shards and slots are aligned
TURNS = (1 << 31) - (1 << 16)  # of all programs together at most: kernels count them in 32 bits
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@dataclass(frozen=True, slots=True)
class Launch:
    """Elements that a program moves at once, how many programs there are at most, and the warps of each. Guesses:
    no GPU has judged them."""

    block: int = 4096
    programs: int = 16  # each keeps an SM from the matrix products beside it
    warps: int = 8

    def turns(self, n: int, devices: int = 1) -> int:
        """Chunks of all devices' n elements."""
        if (turns := -(-n // self.block) * devices) > TURNS:
            raise ValueError(f"{n} elements of {devices} devices are more than {TURNS} chunks of {self.block}")
        return turns

    def grid(self, n: int, devices: int = 1) -> tuple[int]:
        """As many programs as there is work for, and one where there is none: a GPU refuses a grid of nothing."""
        return (max(1, min(self.turns(n, devices), self.programs)),)

    def options(self) -> dict[str, int]:
        return {"block": self.block, "num_warps": self.warps}


USUAL = Launch()
ALONE = Launch(programs=528)  # four for each SM of an H100, where nothing runs beside


@dataclass(frozen=True, slots=True)
class Shards:
    """A shard of n elements in everybody's arena, `offset` bytes from where it begins, as seen by the device `rank`."""

    table: Tensor
    rank: int
    offset: int
    n: int

    def __post_init__(self) -> None:
        if self.offset % ALIGN:
            raise ValueError(f"offset {self.offset} is not a multiple of {ALIGN} bytes")
        if self.n < 0:
            raise ValueError(f"{self.n} elements are fewer than none")

    @property
    def devices(self) -> int:
        return self.table.numel()

    def beside(self, whole: Tensor, launch: Launch) -> tuple[Any, ...]:
        """What all kernels are told of shards, and of the tensor that holds them all end to end."""
        if whole.dtype not in _DTYPES:
            raise ValueError(f"{whole.dtype} is not one of {', '.join(map(str, _DTYPES))}")
        if not whole.is_contiguous() or whole.numel() != self.n * self.devices:
            raise ValueError(f"{whole.numel()} elements for {self.devices} shards of {self.n}")
        return self.table, whole, self.offset, self.n, self.rank, self.devices, launch.turns(self.n, self.devices)


def table(addresses: Sequence[int], where: torch.device | str = "cpu") -> Tensor:
    """Addresses of arenas, in the order of devices, where kernels can read them."""
    if crooked := [hex(address) for address in addresses if address % ALIGN]:
        raise ValueError(f"arenas at {', '.join(crooked)} are not aligned to {ALIGN} bytes")
    return torch.tensor(addresses, dtype=torch.int64, device=where)


def gather(shards: Shards, out: Tensor, dtype: torch.dtype, launch: Launch = USUAL) -> None:
    """Copy everybody's shard, of this dtype, into its part of `out`, in the dtype of `out`."""
    grid = launch.grid(shards.n, shards.devices)
    call(device.gather, grid, *shards.beside(out, launch), dtype=_DTYPES[dtype], **launch.options())


def add(shards: Shards, gradients: Tensor, launch: Launch = USUAL) -> None:
    """Add each device's part of `gradients` to the fp32 shard in its arena. The last bits depend on who came first."""
    grid = launch.grid(shards.n, shards.devices)
    call(device.add, grid, *shards.beside(gradients, launch), **launch.options())


def write(shards: Shards, gradients: Tensor, *, first: bool, launch: Launch = USUAL) -> None:
    """Write each device's part of `gradients` into a slot of its arena, or add it to what this device wrote there."""
    grid = launch.grid(shards.n, shards.devices)
    call(device.write, grid, *shards.beside(gradients, launch), first=first, **launch.options())


def compile_writes(n: int, dtype: torch.dtype, where: torch.device, launch: Launch = USUAL) -> None:
    """Have all code that writes of n elements each will need, by writing a few: a run is not to compile while timed."""
    few, spare = (ALIGN, [0]) if n % ALIGN == 0 else (3, [0, 1])  # where parts of odd sizes begin, anything goes
    room, gradients = torch.zeros(few, device=where), torch.zeros(few + 1, dtype=dtype, device=where)
    place = Shards(table([room.data_ptr()], where), 0, 0, few)
    for start in spare:
        for first in (True, False):
            write(place, gradients[start : start + few], first=first, launch=launch)


def padded(n: int) -> int:
    """Elements up to where one instruction ends. Slots have room for them, and sums of all that is there need no code
    that looks at single elements, which takes twice the registers."""
    return -(-n // ALIGN) * ALIGN


def total(slots: Tensor, writers: int, n: int, out: Tensor, launch: Launch = ALONE) -> None:
    """The sum of so many slots of n elements, which lie at equal distances in `slots`, in the order of writers. `out`
    may be the first of them."""
    stride = slots.numel() // writers
    if slots.dtype != torch.float32 or out.dtype != torch.float32 or not 0 <= n <= min(stride, out.numel()):
        raise ValueError(f"{writers} slots of {n} fp32 elements in {slots.numel()} of {slots.dtype}")
    told = slots, out, stride, n, launch.turns(n)
    call(device.total, launch.grid(n), *told, writers=writers, **launch.options())


def meet(flags: Shards, count: int, tries: int, missing: Tensor) -> None:
    """On a stream: nothing after it begins before all devices have come as often. `flags`: 32 bits of each device."""
    _check_flags(flags, missing)
    call(device.meet, (1,), *_flagged(flags), count, tries, missing, num_warps=1)


def tell(flags: Shards, count: int) -> None:
    """Half a meeting: the others hear of it when all that was given to the stream before is done."""
    call(device.tell, (1,), *_flagged(flags), count, num_warps=1)


def wait(flags: Shards, count: int, tries: int, missing: Tensor) -> None:
    """The other half: nothing after it on the stream begins before all have told."""
    _check_flags(flags, missing)
    call(device.wait, (1,), *_flagged(flags), count, tries, missing, num_warps=1)


def _flagged(flags: Shards) -> tuple[Any, ...]:
    return flags.table, flags.offset, flags.rank, flags.devices


def _check_flags(flags: Shards, missing: Tensor) -> None:
    if missing.dtype != torch.int32 or missing.numel() != flags.devices or flags.n != flags.devices:
        raise ValueError(f"{flags.n} flags and {missing.numel()} of {missing.dtype} for {flags.devices} devices")
