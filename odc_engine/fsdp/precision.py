"""Refuse dtypes and offloading that the engine does not support, on CPUs as on GPUs, when OnDemand is made.

Kernels and arenas support float32 and bfloat16, and sums are float32. float16 would need one loss scale on all ranks.
float64 parameters work on CPUs only, where torch moves them; their sums are float32, too.
"""

from collections.abc import Sequence

import torch

from odc_engine.fsdp.groups import Group
from odcsim.errors import InputError

MOVED = (torch.float32, torch.bfloat16)


def check_precision(groups: Sequence[Group]) -> None:
    for group in groups:
        _check_place(group)
        policy = group.precision
        for what, dtype, fix in (
            ("computes", policy.param_dtype, "use torch.bfloat16 for param_dtype, or leave it out"),
            ("reduces", policy.reduce_dtype, "leave reduce_dtype out: sums are float32 whatever it is"),
        ):
            if dtype not in (None, *MOVED):
                raise InputError(f"unit {group.name} {what} in {_named(dtype)}, by its MixedPrecisionPolicy", fix=fix)
        _check_parameters(group)


def _check_place(group: Group) -> None:
    if group.offloaded:
        problem = f"unit {group.name} keeps its parameters on the CPU, by CPUOffloadPolicy"
        raise InputError(problem, fix="leave offload_policy out: peers read parameters where they compute")


def _check_parameters(group: Group) -> None:
    for parameter in group.parameters:
        if hasattr(parameter.local, "fsdp_pre_all_gather"):
            problem = f"parameter {parameter.name} is gathered as its {type(parameter.local).__name__} has it"
            raise InputError(problem, fix="shard plain tensors: float8 and quantized ones pack what they gather")
        if parameter.local.dtype not in (MOVED if parameter.local.is_cuda else (*MOVED, torch.float64)):
            problem = f"parameter {parameter.name} is {_named(parameter.local.dtype)}"
            raise InputError(problem, fix="use float32 or bfloat16: kernels move no other, and sums are float32")


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
