"""Parameters that no gradient has reached since their unit's last push.

FSDP2 packs what has a gradient: a parameter used in some microbatches only would shift all that follow it. It is known
here which ones it has packed, and zeros are put between them. A unit of which it would pack nothing it does not reduce
at all, so a device that skips a unit moves no byte of it. Where transfers meet the others would wait: there all of the
unit's gradients are zeros, which FSDP2 can be told to pack from torch 2.13 on.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError

SETTER = "set_reduce_scatter_unused_params"


def pack_zeros(unit: Unit, *, meets: bool) -> Callable[[], object]:
    """Have FSDP2 do so where transfers meet, and nowhere else. Returns what ends it, where that is not a setting."""
    if hasattr(FSDPModule, SETTER):
        unit.fsdp.set_reduce_scatter_unused_params(meets)
    elif meets:
        return unit.group.before_reduction(lambda: _reach(unit))
    return lambda: None


def _reach(unit: Unit) -> None:
    if unit.group.reduces and not any(piece.managed.kept_back for piece in unit.trainable):
        for piece in unit.trainable:
            piece.managed.reach_by_zeros()


def spread(unit: Unit, packed: Tensor, reached: Sequence[bool], devices: int) -> Tensor:
    """A unit's gradients as if each parameter had one: all devices' parts of the first device, then of the next."""
    if packed.numel() == unit.shape.push * devices:
        return packed
    known = len(reached) == len(unit.trainable)  # none was frozen since
    if not known or packed.numel() != len(columns := _columns(unit, reached)) * devices:
        raise InputError(
            f"unit {unit.name} reduces {packed.numel()} elements, not {unit.shape.push * devices}",
            fix="freeze or unfreeze parameters before OnDemand is made",
        )
    whole = packed.new_zeros(devices, unit.shape.push)
    whole[:, columns.to(packed.device)] = packed.view(devices, -1)
    return whole.view(-1)


def _columns(unit: Unit, reached: Sequence[bool]) -> Tensor:
    """Where the parameters that were reached lie in a device's part of the unit."""
    sizes = torch.tensor([piece.numel for piece in unit.trainable], device="cpu")
    return torch.repeat_interleave(torch.tensor(reached, device="cpu"), sizes).nonzero().flatten()


class Late:
    """Sums that a collective has brought of parameters which this device did not reach: FSDP2 expects none of them, so
    they join `.grad` when the minibatch ends."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def part(self, unit: Unit, summed: Tensor, reached: Sequence[bool], expected: Tensor) -> None:
        """Give FSDP2 what it expects of a unit's sum, and keep the rest."""
        columns = _columns(unit, reached).to(summed.device)
        expected.copy_(summed[columns])
        summed[columns] = 0
        self._sums[unit.index] = summed.float() + self._sums.get(unit.index, 0)

    def settle(self, units: Sequence[Unit]) -> None:
        for index, total in self._sums.items():
            start = 0
            for piece in units[index].trainable:
                local = piece.local
                part = total[start : start + local.numel()].view(local.shape).to(local.dtype)
                start += piece.numel
                _add(piece.parameter, part)
        self._sums.clear()


def _add(parameter: DTensor, part: Tensor) -> None:
    if isinstance(parameter.grad, DTensor):
        parameter.grad.to_local().add_(part)
        return
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    parameter.grad = DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)
