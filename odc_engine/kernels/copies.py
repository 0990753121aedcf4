"""Copies of parts elsewhere into a whole tensor, where the dtype does not change: by a GPU's copy engines.

The driver takes those from peers as one batch. The hint that they shall run beside compute goes with those
between GPUs alone: from 13.1 on the driver takes it for an order, and inside a GPU copy engines reach a small part of
its memory's rate. So the device's own part is an ordinary copy, which is no part of the batch. A driver that takes no
batch is given one copy after the other, and so is a processor.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

_cuda: Any = torch.cuda  # torch has no types for most of it
BATCH = "in a batch"
SINCE = 13000  # of CUDA: bindings of 13 call the second version of the batch, which 12.8 has not
_counting = Lock()
_counts: Counter[str] = Counter()


class Parts:
    """Tensors of one size and dtype that stand, end to end, for a whole one. `own`: which lies in this device's own
    memory; copies begin with the next, so that devices do not all ask the same one at once. `elsewhere`: those on other
    GPUs."""

    def __init__(self, parts: Sequence[Tensor], own: int = 0, *, elsewhere: Collection[int] = ()) -> None:
        self._count = len(parts)
        peers = [(own + i) % self._count for i in range(1, self._count)]
        self._order = sorted(peers, key=lambda i: i not in elsewhere)
        self._beside = sum(i in elsewhere for i in peers)  # of them, which come first
        self._parts = [parts[i] for i in self._order]
        self._own = own, parts[own]
        self._size, self._dtype = parts[0].nbytes, parts[0].dtype
        self._addresses = [part.data_ptr() for part in self._parts]

    def collect(self, whole: Tensor) -> None:
        """Copy every part to its place."""
        size, count = self._size, self._count
        if whole.dtype != self._dtype or not whole.is_contiguous() or whole.nbytes != size * count:
            raise ValueError(f"{whole.numel()} of {whole.dtype} for {count} parts of {size} bytes")
        if size == 0:
            return
        chunks, alone = whole.view(count, -1), [self._own]
        places = [whole.data_ptr() + size * i for i in self._order]
        if not batch(places, self._addresses, size, _stream(whole), self._beside):
            alone += zip(self._order, self._parts, strict=True)
        for i, part in alone:
            chunks[i].copy_(part)


def _stream(tensor: Tensor) -> int:
    return int(_cuda.current_stream(tensor.device).cuda_stream) if tensor.is_cuda else 0


def batch(targets: Sequence[int], sources: Sequence[int], size: int, stream: int, beside: int = 0) -> bool:
    """Give a stream copies of `size` bytes each, in whatever order among themselves. The first so many are `beside`
    compute, as far as that goes. False where that cannot be."""
    n = len(targets)
    if n == 0:
        return True
    if stream == 0 or (driver := _driver()) is None:  # no batch goes to the default stream
        why = "on the default stream" if stream == 0 and batches() else "no driver takes batches"
        _count(f"one by one: {why}", n)
        return False
    pointer = driver.CUdeviceptr
    starts, kinds = _kinds(driver, n, beside)
    told = [pointer(at) for at in targets], [pointer(at) for at in sources], [size] * n, n, kinds, starts, len(kinds)
    status, *_ = driver.cuMemcpyBatchAsync(*told, stream)
    _count(BATCH if int(status) == 0 else f"one by one: the driver answers {status.name}", n)
    return int(status) == 0


def _kinds(driver: Any, n: int, beside: int) -> tuple[list[int], list[Any]]:
    """From which copy on which attributes hold."""
    every = [(0, beside, True), (beside, n, False)]
    held = [(start, _how(driver, hint)) for start, stop, hint in every if start < stop]
    return [start for start, _ in held], [how for _, how in held]


def batches() -> bool:
    """Whether the driver takes them."""
    return _driver() is not None


def counts() -> dict[str, int]:
    """How many copies from peers went which way, in this process until now."""
    with _counting:
        return dict(_counts)


def _count(way: str, n: int) -> None:
    with _counting:
        _counts[way] += n


@cache
def _driver() -> Any:
    """Its calls, or None where it has none for batches."""
    try:
        from cuda.bindings import driver

        status, version = driver.cuDriverGetVersion()
    except (ImportError, RuntimeError):  # no bindings, or nothing that they find
        return None
    known = int(status) == 0 and version >= SINCE and hasattr(driver, "cuMemcpyBatchAsync")
    return driver if known else None


@cache
def _how(driver: Any, beside: bool) -> Any:
    """How a copy is done: its source read in the stream's order, and the SMs left to compute where it is `beside`."""
    how = driver.CUmemcpyAttributes()
    how.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    flags = driver.CUmemcpyFlags
    kind = flags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE if beside else flags.CU_MEMCPY_FLAG_DEFAULT
    how.flags = int(kind)
    return how
