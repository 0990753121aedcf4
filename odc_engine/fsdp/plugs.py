"""The calls that replace FSDP2's all-gather and reduce-scatter of a unit; FSDP2 first asks them for memory."""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.fsdp.units import Unit
from odc_engine.places.lanes import Handle
from odcsim.errors import InputError


class Mover(Protocol):
    size: int

    def gather(self, unit: Unit, mine: Tensor, out: Tensor) -> Handle: ...

    def push(self, unit: Unit, gradients: Tensor) -> None: ...


class _Plug:
    def __init__(self, mover: Mover, unit: Unit) -> None:
        self.mover, self.unit = mover, unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        with torch.inference_mode(False):  # a lane may not write to what is allocated inside it, nor training later
            return torch.empty(size, dtype=dtype, device=device)


class Gather(_Plug):
    """Gathers the unit."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if group.size() != self.mover.size:
            raise InputError(
                f"unit {self.unit.name} gathers among {group.size()} of {self.mover.size} devices",
                fix="use reshard_after_forward True or False",
            )
        del async_op  # FSDP2 waits for whatever it is given in any case
        return self.mover.gather(self.unit, input_tensor, output_tensor).awaited


class Push(_Plug):
    """Pushes the unit's gradients to their owners, which add them. FSDP2's own output stays unused."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        del output_tensor, group, op, async_op
        self.mover.push(self.unit, input_tensor)
