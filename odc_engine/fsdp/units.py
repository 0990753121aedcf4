"""An FSDP2 model seen as units: which parameters each gathers and reduces, in FSDP's order and padding.

FSDP2 has no public list of them, so the order is taken from the module tree and then held against what it itself packs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from odc_engine.memory.arena import UnitShape
from odcsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Piece:
    """One parameter's shard: its padded size in every device's shard of the unit."""

    name: str
    parameter: DTensor
    numel: int

    @property
    def local(self) -> Tensor:
        """Read anew each time: FSDP2 may replace it."""
        return self.parameter.to_local()


@dataclass(frozen=True, slots=True)
class Unit:
    """A module that FSDP2 gathers and reduces as one."""

    index: int
    name: str
    prefix: str
    module: nn.Module
    pieces: tuple[Piece, ...]
    shape: UnitShape

    @property
    def fsdp(self) -> FSDPModule:
        """The module under its other name: `fully_shard` gives it both types."""
        assert isinstance(self.module, FSDPModule)
        return self.module

    @property
    def trainable(self) -> tuple[Piece, ...]:
        return tuple(p for p in self.pieces if p.parameter.requires_grad)


def units_of(model: nn.Module, size: int) -> tuple[Unit, ...]:
    """The units of a model on which `fully_shard` has been called, in module order. Refuses what is not supported."""
    if not isinstance(model, FSDPModule):
        raise InputError("the model is not sharded", fix="call torch.distributed.fsdp.fully_shard on it first")
    found: list[Unit] = []
    for name, module in cast(nn.Module, model).named_modules():
        if isinstance(module, FSDPModule) and (pieces := _pieces(name, cast(nn.Module, module), size)):
            found.append(_unit(len(found), name, cast(nn.Module, module), pieces))
    return tuple(found)


def _pieces(prefix: str, module: nn.Module, size: int) -> tuple[Piece, ...]:
    pieces = []
    for name, parameter in _managed(prefix, module):
        pieces.append(Piece(name, _checked(name, parameter), _padded(parameter, size)))
    return tuple(pieces)


def whole_parameters(unit: Unit) -> list[tuple[str, nn.Parameter]]:
    """The unit's parameters as its module holds them now: whole while gathered, under the names of its pieces."""
    return list(_managed(unit.prefix, unit.module))


def _managed(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The module's parameters without those of units below it, children before parents, tied ones once."""
    seen: set[int] = set()
    for name, parameter in _walk(prefix, module):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield name, parameter


def _walk(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, child in module.named_children():
        if not isinstance(child, FSDPModule):
            yield from _walk(f"{prefix}.{name}" if prefix else name, child)
    yield from module.named_parameters(prefix, recurse=False)


def _checked(name: str, parameter: nn.Parameter) -> DTensor:
    if not isinstance(parameter, DTensor):
        raise InputError(f"parameter {name} is not sharded", fix="let fully_shard manage every parameter")
    if parameter.device_mesh.ndim != 1:
        raise InputError(
            f"parameter {name} lives on a {parameter.device_mesh.ndim}-dimensional mesh",
            fix="use a one-dimensional mesh: hybrid sharding reduces inside backward and hangs at unequal counts",
        )
    placement = parameter.placements[0]
    if not isinstance(placement, Shard) or placement.dim != 0:
        raise InputError(f"parameter {name} is placed as {placement}", fix="shard along the first dimension")
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise InputError(
            f"parameter {name} has a hook that steps in backward",
            fix="step after settle(): before it gradients are zeros",
        )
    return parameter


def _padded(parameter: nn.Parameter, size: int) -> int:
    rows = parameter.shape[0] if parameter.dim() else 1
    rest = parameter.numel() // rows if rows else 0
    return int(-(-rows // size) * rest)


def _unit(index: int, prefix: str, module: nn.Module, pieces: tuple[Piece, ...]) -> Unit:
    name = prefix or "root"
    gather = sum(p.numel for p in pieces)
    push = sum(p.numel for p in pieces if p.parameter.requires_grad)
    if len({p.parameter.dtype for p in pieces if p.parameter.requires_grad}) > 1:
        raise _mixed_dtypes(name)
    packed = _packed_by_fsdp(name, module)
    if packed.numel() != gather:
        raise InputError(
            f"unit {name} packs {packed.numel()} elements per device and {gather} were expected",
            fix="call fully_shard on one module at a time",
        )
    unit = Unit(index, name, prefix, module, pieces, UnitShape(name, gather, push, packed.dtype))
    mine = torch.empty_like(packed)
    pack(unit, mine)
    if not torch.equal(mine.view(torch.uint8), packed.view(torch.uint8)):
        raise InputError(f"unit {name} is packed in an order that is not understood", fix="see 'odc_engine doctor'")
    return unit


class _Look:
    """Stands in for an all-gather once, to see what FSDP2 hands to it."""

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


def _packed_by_fsdp(name: str, module: nn.Module) -> Tensor:
    assert isinstance(module, FSDPModule)
    look = _Look()
    module.set_custom_all_gather(cast(Any, look))  # FSDP2's base class is not public; it asks for no more than this
    module.unshard()
    module.reshard()
    if look.packed is None:
        raise InputError(f"unit {name} gathers nothing", fix="give fully_shard a mesh of more than one device")
    if look.packed.dtype == torch.uint8:
        raise _mixed_dtypes(name)
    return look.packed


def _mixed_dtypes(name: str) -> InputError:
    return InputError(f"unit {name} holds parameters of several dtypes", fix="use one dtype in a unit")


def pack(unit: Unit, out: Tensor) -> None:
    """A unit's shard as FSDP2 packs it: each parameter's rows, padded with zeros, in the gather's dtype."""
    start = 0
    for piece in unit.pieces:
        local = piece.local.detach().reshape(-1)
        out[start : start + local.numel()].copy_(local)
        out[start + local.numel() : start + piece.numel].zero_()
        start += piece.numel


def versions(unit: Unit) -> list[tuple[int, int]]:
    """An operation on a DTensor counts in the DTensor alone, one on its local tensor in that alone."""
    return [(piece.parameter._version, piece.local._version) for piece in unit.pieces]


def set_grads(unit: Unit, total: Tensor, used: list[int]) -> None:
    """Give each parameter its part of the unit's sum of gradients, or none where nobody used it."""
    start = 0
    for piece, by_anybody in zip(unit.trainable, used, strict=True):
        parameter, local = piece.parameter, piece.local
        part = total[start : start + local.numel()].view(local.shape).to(parameter.dtype)
        start += piece.numel
        gradient = DTensor.from_local(
            part,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        parameter.grad = gradient if by_anybody else None
