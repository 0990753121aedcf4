"""Launches of kernels by several threads of a process.

Triton keeps one compiled kernel for all of them, and takes it for ready before the GPU has loaded it: another thread
that comes in that moment launches nothing, and fails. So of each kind of launch the first is one thread's at a time. No
other is: a launch waits where its stream is full, and other devices shall not wait with it.
"""

import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

_known: set[tuple[object, ...]] = set()
_first = threading.Lock()


def call(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """`kernel[grid](*args, **constants)`, on the GPU where its tensors are: Triton takes the present one."""
    with _where(args):
        _call(kernel, grid, args, constants)


def _where(args: tuple[Any, ...]) -> AbstractContextManager[Any]:
    at = next((value.device for value in args if isinstance(value, Tensor) and value.is_cuda), None)
    return nullcontext() if at is None else torch.cuda.device(at)


def _call(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
    kind = (id(kernel), *map(_kind, args, _specialized(kernel, len(args))), *constants.values())
    if kind in _known:
        kernel[grid](*args, **constants)
        return
    with _first:
        kernel[grid](*args, **constants)
        _known.add(kind)


@cache
def _specialized(kernel: Any, count: int) -> tuple[bool, ...]:
    """Of which arguments the kernel wants more than their type to be compiled for. Interpreted ones tell nothing."""
    known = getattr(kernel, "params", ())[:count]
    return tuple(not parameter.do_not_specialize for parameter in known) or (True,) * count


def _kind(value: Any, specialized: bool) -> object:
    """All of an argument that Triton compiles another kernel for."""
    if isinstance(value, Tensor):
        return value.dtype, value.device, value.data_ptr() % 16 == 0
    return value.bit_length() > 31, specialized and (value % 16 == 0, value == 1)
