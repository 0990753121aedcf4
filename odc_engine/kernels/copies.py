"""Copies between a whole tensor and its parts elsewhere, where the dtype does not change: by a GPU's copy engines.

The driver takes them as one batch, with the hint that they shall run beside compute. A driver that takes none is given
one copy after the other, and so is a processor.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

_cuda: Any = torch.cuda  # torch has no types for most of it


class Parts:
    """Tensors of one size and dtype that stand, end to end, for a whole one. `first`: which is copied first, so that
    devices do not all ask the same one at once. `others`: it is not copied at all."""

    def __init__(self, parts: Sequence[Tensor], first: int = 0, *, others: bool = False) -> None:
        self._count = len(parts)
        self._order = [(first + i) % self._count for i in range(others, self._count)]
        self._parts = [parts[i] for i in self._order]
        self._size, self._dtype = parts[0].nbytes, parts[0].dtype
        self._addresses = [part.data_ptr() for part in self._parts]

    def collect(self, whole: Tensor) -> None:
        """Copy every part to its place."""
        self._move(whole, self._addresses, into_whole=True)

    def spread(self, whole: Tensor) -> None:
        """Copy every place to its part."""
        self._move(whole, self._addresses, into_whole=False)

    def _move(self, whole: Tensor, addresses: list[int], *, into_whole: bool) -> None:
        size, count = self._size, self._count
        if whole.dtype != self._dtype or not whole.is_contiguous() or whole.nbytes != size * count:
            raise ValueError(f"{whole.numel()} of {whole.dtype} for {count} parts of {size} bytes")
        if size == 0 or not addresses:
            return
        places = [whole.data_ptr() + size * i for i in self._order]
        targets, sources = (places, addresses) if into_whole else (addresses, places)
        if not batch(targets, sources, size, _stream(whole)):
            chunks = whole.view(count, -1)
            for i, part in zip(self._order, self._parts, strict=True):
                (chunks[i] if into_whole else part).copy_(part if into_whole else chunks[i])


def _stream(tensor: Tensor) -> int:
    return int(_cuda.current_stream().cuda_stream) if tensor.is_cuda else 0


def batch(targets: Sequence[int], sources: Sequence[int], size: int, stream: int) -> bool:
    """Give a stream copies of `size` bytes each, in whatever order among themselves. False where that cannot be."""
    if stream == 0 or (driver := _driver()) is None:  # no batch goes to the default stream
        return False
    pointer, n = driver.CUdeviceptr, len(targets)
    told = [pointer(at) for at in targets], [pointer(at) for at in sources], [size] * n, n, [_beside(driver)], [0], 1
    status, *_ = driver.cuMemcpyBatchAsync(*told, stream)
    return int(status) == 0


def batches() -> bool:
    """Whether the driver takes them."""
    return _driver() is not None


@cache
def _driver() -> Any:
    """Its calls, or None where it has none for batches (before 12.8)."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    status, version = driver.cuDriverGetVersion()
    known = int(status) == 0 and version >= 12080 and hasattr(driver, "cuMemcpyBatchAsync")
    return driver if known else None


@cache
def _beside(driver: Any) -> Any:
    """How each copy is done: its source read in the stream's order, and the SMs left to compute."""
    how = driver.CUmemcpyAttributes()
    how.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    how.flags = int(driver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
    return how
