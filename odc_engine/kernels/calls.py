"""Launches of kernels by several threads of a process.

Triton keeps one compiled kernel for all of them, and takes it for ready before the GPU has loaded it: another thread
that comes in that moment launches nothing, and fails. So of each kind of launch the first is one thread's at a time. No
other is: a launch waits where its stream is full, and other devices shall not wait with it.
"""

import threading
from typing import Any

from torch import Tensor

_known: set[tuple[object, ...]] = set()
_first = threading.Lock()


def call(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """`kernel[grid](*args, **constants)`."""
    kind = (id(kernel), *map(_kind, args), *constants.values())
    if kind in _known:
        kernel[grid](*args, **constants)
        return
    with _first:
        kernel[grid](*args, **constants)
        _known.add(kind)


def _kind(value: Any) -> object:
    """All of an argument that Triton compiles another kernel for."""
    if isinstance(value, Tensor):
        return value.dtype, value.device, value.data_ptr() % 16 == 0
    return value.bit_length() > 31, value % 16 == 0, value == 1
