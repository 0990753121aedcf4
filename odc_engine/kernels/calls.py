"""Launches of kernels on the GPU where their tensors are."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor


def call(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """`kernel[grid](*args, **constants)`, on the GPU where its tensors are: Triton takes the present one."""
    at = next((value.device for value in args if isinstance(value, Tensor) and value.is_cuda), None)
    with nullcontext() if at is None else torch.cuda.device(at):
        kernel[grid](*args, **constants)
