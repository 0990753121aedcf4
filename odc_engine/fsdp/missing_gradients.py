"""Fill in zeros for parameters that got no gradient since their unit's last push.

FSDP2 packs only parameters with a gradient: if a parameter is used in some microbatches only, all that follow it would
shift. This module knows which ones were packed, and inserts zeros for the others. If no parameter of a unit has a
gradient, FSDP2 does not reduce the unit, so that a rank that skips a unit sends nothing. Under collectives the other
ranks would wait: there the whole unit is sent as zeros, which FSDP2 supports from torch 2.13 on.
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
    """Make FSDP2 send zeros for unused units, under collectives only. Returns a call that ends this, if it is not a
    setting."""
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
    """Return a unit's gradients with zeros where parameters have none: all parameters' parts of rank 0, then of rank
    1, and so on."""
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
    """Return where the parameters with gradients lie in one rank's part of the unit."""
    sizes = torch.tensor([piece.numel for piece in unit.trainable], device="cpu")
    return torch.repeat_interleave(torch.tensor(reached, device="cpu"), sizes).nonzero().flatten()


class Late:
    """Sums of parameters that this rank did not use, reduced by a collective. FSDP2 expects none of them, so that
    they are added to `.grad` at the end of the minibatch."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def part(self, unit: Unit, summed: Tensor, reached: Sequence[bool], expected: Tensor) -> None:
        """Return the part of a unit's sum that FSDP2 expects, and keep the rest."""
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
