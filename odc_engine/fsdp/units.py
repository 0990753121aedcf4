"""View an FSDP2 model as units: which parameters each gathers and reduces, in FSDP2's order and padding.

Both are compared with what FSDP2 itself packs: a version of torch that packs differently is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from odc_engine.fsdp.groups import Group, Managed, groups_of
from odc_engine.fsdp.remedies import BY_HAND
from odc_engine.memory.arena import UnitShape
from odcsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Piece:
    """One parameter's part of a unit: its padded size in every rank's shard."""

    managed: Managed
    numel: int

    @property
    def name(self) -> str:
        return self.managed.name

    @property
    def parameter(self) -> DTensor:
        return self.managed.sharded

    @property
    def local(self) -> Tensor:
        return self.managed.local


@dataclass(frozen=True, slots=True)
class Unit:
    """What FSDP2 gathers and reduces as one. `trainable` and `frozen` are its pieces at construction."""

    index: int
    group: Group
    pieces: tuple[Piece, ...]
    trainable: tuple[Piece, ...]
    frozen: tuple[Piece, ...]
    shape: UnitShape

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def phase(self) -> str:
        return "backward" if "BACKWARD" in self.group.phase else "forward"

    @property
    def fsdp(self) -> FSDPModule:
        return self.group.fsdp


def sharded_groups(model: nn.Module) -> list[Group]:
    if not isinstance(model, FSDPModule):
        raise InputError("the model is not sharded", fix="call torch.distributed.fsdp.fully_shard on it first")
    groups = groups_of(cast(nn.Module, model))
    for group in groups:
        if group.replaced:
            raise InputError(f"unit {group.name} has an OnDemand already", fix="close() that one first")
        for parameter in group.parameters:
            refuse_cast(parameter)
        group.fsdp.reshard()  # an evaluation may have left it whole
    managed = {id(parameter.sharded) for group in groups for parameter in group.parameters}
    for name, own in cast(nn.Module, model).named_parameters():
        if id(own) not in managed:
            raise InputError(f"parameter {name} is not sharded", fix="let fully_shard manage every parameter")
    return groups


def refuse_cast(managed: Managed) -> None:
    if managed.cast:
        problem = f"parameter {managed.name} was cast to {str(managed.local.dtype).removeprefix('torch.')}"
        raise InputError(f"{problem} after it was gathered in another dtype", fix="cast the model before fully_shard")


def units_of(groups: Sequence[Group]) -> tuple[Unit, ...]:
    """Return a model's units, or raise if something about them is not supported."""
    return tuple(_unit(index, group) for index, group in enumerate(groups))


def _unit(index: int, group: Group) -> Unit:
    pieces = tuple(Piece(_checked(managed, group), managed.padded) for managed in group.parameters)
    trainable, frozen = (tuple(p for p in pieces if p.parameter.requires_grad is yes) for yes in (True, False))
    if len({p.parameter.dtype for p in trainable}) > 1:
        raise _mixed_dtypes(group.name)
    packed = _packed_by_fsdp(group)
    gather, push = (sum(p.numel for p in some) for some in (pieces, trainable))
    unit = Unit(index, group, pieces, trainable, frozen, UnitShape(group.name, gather, push, packed.dtype))
    mine = torch.empty(gather, dtype=packed.dtype, device=packed.device)
    pack(unit, mine)
    if not torch.equal(mine.view(torch.uint8), packed.view(torch.uint8)):
        raise InputError(
            f"unit {group.name} is packed by FSDP2 in an order that the engine does not know",
            fix="see 'odc_engine doctor'",
        )
    return unit


def _checked(managed: Managed, group: Group) -> Managed:
    name, parameter = managed.name, managed.sharded
    if parameter.device_mesh.ndim - group.dims not in (0, 1):
        raise InputError(
            f"parameter {name} lives on a {parameter.device_mesh.ndim}-dimensional mesh",
            fix="use replicas, shards and tensor parallel at most",
        )
    placement = parameter.placements[group.dims - 1]
    if getattr(placement, "dim", None) != 0:  # a Shard, or a strided one under tensor parallel
        raise InputError(f"parameter {name} is placed as {placement}", fix="shard along the first dimension")
    if getattr(parameter, "_post_accumulate_grad_hooks", None) or steps_in_backward(parameter):
        raise hook_that_steps(name)
    if getattr(parameter, "_backward_hooks", None):
        raise InputError(f"parameter {name} has a hook on its gradient, which FSDP2 never calls", fix=BY_HAND.change)
    return managed


def steps_in_backward(parameter: DTensor) -> bool:
    """Whether torch.distributed.optim has given the parameter an optimizer in backward, which FSDP2 never calls."""
    return bool(getattr(parameter, "_in_backward_optimizers", None))


def hook_that_steps(name: str) -> InputError:
    problem = f"parameter {name} has a hook that steps in backward"
    return InputError(problem, fix="step after settle(): earlier, gradients are zeros")


class _Look:
    """Replaces one all-gather, to see what FSDP2 passes to it."""

    def __init__(self) -> None:
        self.packed: Tensor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,  # noqa: ARG002 - the signature is FSDP2's
        input_tensor: Tensor,
        group: dist.ProcessGroup,  # noqa: ARG002
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        self.packed = input_tensor.clone()


def _packed_by_fsdp(group: Group) -> Tensor:
    """Return what FSDP2 packs. Afterwards its whole parameters exist, without memory."""
    look, module = _Look(), group.fsdp
    module.set_custom_all_gather(cast(Any, look))  # FSDP2's base class is not public; it needs no more than this
    module.unshard()
    module.reshard()
    if look.packed is None:
        raise InputError(f"unit {group.name} gathers nothing", fix="give fully_shard a mesh of more than one device")
    if look.packed.dtype == torch.uint8:
        raise _mixed_dtypes(group.name)
    return look.packed


def _mixed_dtypes(name: str) -> InputError:
    return InputError(f"unit {name} holds parameters of several dtypes", fix="use one dtype in a unit")


def pack(unit: Unit, out: Tensor) -> None:
    """Pack a unit's shard as FSDP2 does: each parameter's rows, padded with zeros, in the gather's dtype."""
    start = 0
    for piece in unit.pieces:
        local = piece.local.detach().reshape(-1)
        out[start : start + local.numel()].copy_(local)
        out[start + local.numel() : start + piece.numel].zero_()
        start += piece.numel


def set_grads(unit: Unit, total: Tensor, used: list[int], scale: float = 1.0) -> None:
    """Set each parameter's `.grad` from the unit's sum, or to None if no rank used it.

    It is a copy: later pushes do not change a gradient that the user keeps, and the user's changes do not change sums.
    """
    copied = torch.mul(total, scale) if any(used) else total
    start = 0
    for piece, by_anybody in zip(unit.trainable, used, strict=True):
        parameter, local = piece.parameter, piece.local
        part = copied[start : start + local.numel()].view(local.shape).to(parameter.dtype)
        start += piece.numel
        parameter.grad = piece.managed.like_the_shard(part) if by_anybody else None
