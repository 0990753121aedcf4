"""FSDP2's own collectives (gloo or NCCL), told to sum like on-demand does, and recorded.

A rival over another transport: what it loses against on-demand is the transport's doing as much as the meetings'. The
fair rival is OnDemand(meets=True).
"""

import time
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from odc_engine.fsdp import Recorder, Silence
from odc_engine.units import Unit, units_of


class Collective:
    """Stands where OnDemand stands, for a backend that has no one-sided access."""

    def __init__(self, model: nn.Module, *, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Silence()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.units = units_of(model, self.size) if self.size > 1 else ()
        for unit in self.units:
            unit.fsdp.set_custom_all_gather(cast(Any, _Gather(self, unit)))
            unit.fsdp.set_custom_reduce_scatter(cast(Any, _Reduce(self, unit)))
            unit.fsdp.set_force_sum_reduction_for_comms(True)
            unit.fsdp.set_gradient_divide_factor(1.0)

    def drain(self) -> None:
        """Nothing runs beside compute on a CPU."""

    def settle(self) -> None:
        with self.recorder.span("meeting"):
            dist.barrier()

    def publish(self) -> None:
        for unit in self.units:
            for piece in unit.pieces:
                piece.parameter.grad = None

    def close(self) -> None:
        """FSDP2 holds nothing of ours."""


class _Timed:
    def __init__(self, owner: Collective, unit: Unit) -> None:
        self.owner, self.unit = owner, unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class _Gather(_Timed):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        number, asked = self.owner.recorder.given("gather", self.unit.index), time.perf_counter()
        del async_op  # measured by itself: gloo's own thread would end it out of sight
        _all_gather(output_tensor, input_tensor, group=group)
        self.owner.recorder.done(number, asked, time.perf_counter())


class _Reduce(_Timed):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        number, asked = self.owner.recorder.given("push", self.unit.index), time.perf_counter()
        del async_op
        _reduce_scatter(output_tensor, input_tensor, op=op, group=group)
        self.owner.recorder.done(number, asked, time.perf_counter())


# torch 2.13 renamed both and warns at every use of the old names.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
