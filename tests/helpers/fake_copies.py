"""A driver that takes copies in batches and is not here: it does them at once, in any order, after the real one has
converted its arguments."""

import ctypes
import random
from collections import Counter

import pytest
from cuda.bindings import driver as real

from odc_engine.kernels import copies


class FakeCopies:
    CUdeviceptr, CUmemcpyAttributes = real.CUdeviceptr, real.CUmemcpyAttributes
    CUmemcpySrcAccessOrder, CUmemcpyFlags = real.CUmemcpySrcAccessOrder, real.CUmemcpyFlags

    def __init__(self, status=real.CUresult.CUDA_SUCCESS):
        self.batches, self._status, self._drawn = [], status, random.Random(0)

    def cuMemcpyBatchAsync(self, dsts, srcs, sizes, count, attrs, starts, kinds, stream):  # noqa: N802
        try:
            real.cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, starts, kinds, stream)
        except RuntimeError:  # arguments are good, and there is no driver here
            pass
        else:
            raise AssertionError("a driver answered")
        assert len(dsts) == len(srcs) == len(sizes) == count
        assert len(attrs) == len(starts) == kinds
        assert starts[0] == 0
        assert starts == sorted(set(starts))
        for how in attrs:
            assert how.srcAccessOrder == real.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        self.batches.append((stream, count))
        if self._status == real.CUresult.CUDA_SUCCESS:
            for i in self._drawn.sample(range(count), count):
                ctypes.memmove(int(dsts[i]), int(srcs[i]), sizes[i])
        return (self._status,)


def install(patch: pytest.MonkeyPatch, fake: FakeCopies, stream: int = 7) -> FakeCopies:
    """Tensors of a processor are taken for a GPU's from now on, as far as copies go."""
    patch.setattr(copies, "_driver", lambda: fake)
    patch.setattr(copies, "_stream", lambda _: stream)
    patch.setattr(copies, "_counts", Counter())
    return fake
