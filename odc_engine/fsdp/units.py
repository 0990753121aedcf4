"""See an FSDP2 model as units: which parameters each gathers and reduces, in FSDP2's order and padding.

`unshard()` shows a unit's whole parameters, and a gather of ours what FSDP2 packs: a version of torch that packs
otherwise than `pack` is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from odc_engine.fsdp.inside import Inside, insides, local, versions
from odc_engine.fsdp.remedies import BY_HAND
from odc_engine.memory.arena import UnitShape
from odcsim.errors import InputError

# Kernels and arenas move these, and sums are float32. float16 would need one loss scale on all ranks.
MOVED = (torch.float32, torch.bfloat16)
Places = Sequence[tuple[str, nn.Module, str]]  # names of a parameter, and by which names which modules hold it
IN_BACKWARD = "_in_backward_optimizers"  # with which torch.distributed.optim steps, and which FSDP2 never calls
GONE: Places = (("?", nn.Module(), ""),)  # of a parameter that the model has no more


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One parameter of a unit. `places`: the modules that hold it, and by which names. `whole`: what FSDP2 shows them
    while the unit is unsharded, always the same tensor. `numel`: of every rank's part, padding included."""

    name: str
    index: int  # among FSDP2's parameters of the unit
    inside: Inside
    places: tuple[tuple[nn.Module, str], ...]
    whole: nn.Parameter
    numel: int

    @property
    def parameter(self) -> DTensor:
        return self.inside.shard(self.index)

    def zeros(self) -> DTensor:
        return like(self.parameter, torch.zeros_like(local(self.parameter)))


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What FSDP2 gathers and reduces as one. `trainable` and `frozen` are its pieces at construction."""

    index: int
    inside: Inside
    pieces: tuple[Piece, ...]
    trainable: tuple[Piece, ...]
    frozen: tuple[Piece, ...]
    shape: UnitShape

    @property
    def name(self) -> str:
        return self.inside.name

    @property
    def fsdp(self) -> FSDPModule:
        return self.inside.fsdp

    @property
    def backward(self) -> bool:
        """Whether FSDP2 needs it for a backward pass."""
        return "BACKWARD" in self.inside.phase

    @property
    def is_whole(self) -> bool:
        """Whether modules are shown its whole parameters."""
        for piece in self.pieces:
            for module, name in piece.places:
                return getattr(module, name, None) is piece.whole
        return False

    def versions(self) -> list[tuple[int, int, int]]:
        """Return what changes when shards do. An operation counts in the DTensor or in its local tensor."""
        return versions(self.inside.shards())

    def whole_versions(self) -> list[int]:
        return [piece.whole._version for piece in self.pieces]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Over which ranks a unit is sharded, which hold the same shard (HSDP), and which hold other parts of the same
    layer (tensor parallelism, where some parameters are plain all the same)."""

    devices: dist.ProcessGroup
    replicas: dist.ProcessGroup | None
    beside: dist.ProcessGroup | None

    @staticmethod
    def of(inside: Inside) -> "Mesh":
        shards = inside.shards()
        mesh, dim = shards[0].device_mesh, _shard_dim(shards[0])
        layers = [each.device_mesh for each in shards if each.device_mesh.ndim > dim + 1]
        replicas, beside = mesh.get_group(0) if dim else None, layers[0].get_group(dim + 1) if layers else None
        return Mesh(mesh.get_group(dim), replicas, beside)


def _shard_dim(parameter: DTensor) -> int:
    """Return the dimension of its mesh over which FSDP2 shards. Replicas come before it, tensor parallelism after."""
    return int(parameter.device_mesh.ndim > 1 and isinstance(parameter.placements[0], Replicate))


def meshes_of(units: Sequence[Inside]) -> list[Mesh]:
    return [Mesh.of(each) for each in units]


def devices_of(model: nn.Module) -> dist.ProcessGroup | None:
    """Return the ranks over which the model is sharded, if they are only some of all."""
    meshes = meshes_of(insides(model)) if isinstance(model, FSDPModule) else []
    if any(mesh.replicas is not None and mesh.devices.size() == 1 for mesh in meshes):
        raise InputError(
            "the mesh has replicas of one device each, so that nothing is sharded",
            fix="shard over more than one device",
        )
    if len({tuple(dist.get_process_group_ranks(mesh.devices)) for mesh in meshes}) > 1:
        raise InputError("units are sharded over different devices", fix="give every fully_shard the same mesh")
    whole = not meshes or meshes[0].devices.size() == dist.get_world_size()
    return None if whole else meshes[0].devices


def sharded(model: nn.Module) -> list[Inside]:
    """Return what FSDP2 knows of a model's units, all of them sharded now."""
    if not isinstance(model, FSDPModule):
        raise InputError("the model is not sharded", fix="call torch.distributed.fsdp.fully_shard on it first")
    found = insides(cast(nn.Module, model))
    for each in found:
        if each.replaced:
            raise InputError(f"unit {each.name} has an OnDemand already", fix="close() that one first")
        each.fsdp.reshard()  # an evaluation may have left it whole
    managed = {id(shard) for each in found for shard in each.shards()}
    for name, own in cast(nn.Module, model).named_parameters():
        if id(own) not in managed:
            raise InputError(f"parameter {name} is not sharded", fix="let fully_shard manage every parameter")
    return found


def units_of(model: nn.Module, found: Sequence[Inside], *, arenas: bool = True) -> tuple[Unit, ...]:
    """Return a model's units, or raise if something about them is not supported. `arenas`: peers read them there."""
    places: dict[int, list[tuple[str, nn.Module, str]]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, own in module.named_parameters(recurse=False):
            places.setdefault(id(own), []).append((f"{prefix}.{name}".lstrip("."), module, name))
    held = [[places.get(id(shard), GONE) for shard in each.shards()] for each in found]
    for each, at in zip(found, held, strict=True) if arenas else ():
        check_precision(each, [one[0][0] for one in at])
    return tuple(_unit(index, each, at) for index, (each, at) in enumerate(zip(found, held, strict=True)))


def _unit(index: int, inside: Inside, held: Sequence[Places]) -> Unit:
    names = [at[0][0] for at in held]
    for name, shard in zip(names, inside.shards(), strict=True):
        _check(name, shard)
    for i in inside.cast():
        raise cast_since(names[i], inside.shard(i))
    mixed = InputError(f"unit {inside.name} holds parameters of several dtypes", fix="use one dtype in a unit")
    if len({shard.dtype for shard in inside.shards() if shard.requires_grad}) > 1:
        raise mixed
    seen = _packed_by_fsdp(inside)
    if seen.dtype == torch.uint8:
        raise mixed
    size = Mesh.of(inside).devices.size()
    pieces = []
    for i, at in enumerate(held):
        whole = cast(nn.Parameter, inside.whole(i))
        rows = local(whole) if isinstance(whole, DTensor) else whole
        numel = -(-rows.shape[0] // size) * rows.shape[1:].numel()
        pieces.append(Piece(at[0][0], i, inside, tuple((module, name) for _, module, name in at if name), whole, numel))
    trainable, frozen = (tuple(p for p in pieces if p.parameter.requires_grad is yes) for yes in (True, False))
    gather, push = (sum(p.numel for p in some) for some in (pieces, trainable))
    shape = UnitShape(inside.name, gather, push, seen.dtype)
    unit = Unit(index, inside, tuple(pieces), trainable, frozen, shape)
    mine = torch.empty(gather, dtype=seen.dtype, device=seen.device)
    pack(unit, mine)
    if not torch.equal(mine.view(torch.uint8), seen.view(torch.uint8)):
        raise InputError(
            f"unit {inside.name} is packed by FSDP2 in an order that the engine does not know",
            fix="see 'odc_engine doctor'",
        )
    return unit


class _Look:
    """Stands in for one all-gather, to see what FSDP2 passes to it."""

    packed: Tensor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **_: object) -> None:  # noqa: ARG002 - FSDP2's names
        self.packed = input_tensor.clone()


def _packed_by_fsdp(inside: Inside) -> Tensor:
    """Return what FSDP2 packs. Afterwards its whole parameters exist, without memory."""
    look, module = _Look(), inside.fsdp
    module.set_custom_all_gather(cast(Any, look))  # FSDP2's base class is not public; it needs no more than this
    module.unshard()
    module.reshard()
    if look.packed is None:
        raise InputError(f"unit {inside.name} gathers nothing", fix="give fully_shard a mesh of more than one device")
    return look.packed


def _check(name: str, parameter: DTensor) -> None:
    """Refuse what cannot be packed, and hooks that FSDP2 never calls."""
    mesh, shard = parameter.device_mesh, _shard_dim(parameter)
    if mesh.ndim - shard > 2:
        raise InputError(
            f"parameter {name} lives on a {mesh.ndim}-dimensional mesh",
            fix="use replicas, shards and tensor parallel at most",
        )
    placement = parameter.placements[shard]
    if getattr(placement, "dim", None) != 0:  # a Shard, or a strided one under tensor parallel
        raise InputError(f"parameter {name} is placed as {placement}", fix="shard along the first dimension")
    if getattr(parameter, "_post_accumulate_grad_hooks", None) or getattr(parameter, IN_BACKWARD, None):
        raise hook_that_steps(name)
    if getattr(parameter, "_backward_hooks", None):
        raise InputError(f"parameter {name} has a hook on its gradient, which FSDP2 never calls", fix=BY_HAND.change)


def hook_that_steps(name: str) -> InputError:
    problem = f"parameter {name} has a hook that steps in backward"
    return InputError(problem, fix="step after settle(): earlier, gradients are zeros")


def cast_since(name: str, shard: DTensor) -> InputError:
    problem = f"parameter {name} was cast to {_named(shard.dtype)} after it was gathered in another dtype"
    return InputError(problem, fix="cast the model before fully_shard")


def check_precision(inside: Inside, names: Sequence[str]) -> None:
    """Refuse dtypes and offloading that are not supported on GPUs, on CPUs too, where torch moves float64 besides."""
    if inside.offloaded:
        problem = f"unit {inside.name} keeps its parameters on the CPU, by CPUOffloadPolicy"
        raise InputError(problem, fix="leave offload_policy out: peers read parameters where they compute")
    for policy in inside.policies():
        for what, dtype, fix in (
            ("computes", policy.param_dtype, "use torch.bfloat16 for param_dtype, or leave it out"),
            ("reduces", policy.reduce_dtype, "leave reduce_dtype out: sums are float32 whatever it is"),
        ):
            if dtype not in (None, *MOVED):
                raise InputError(f"unit {inside.name} {what} in {_named(dtype)}, by its MixedPrecisionPolicy", fix=fix)
    for name, part in zip(names, map(local, inside.shards()), strict=True):
        if hasattr(part, "fsdp_pre_all_gather"):
            problem = f"parameter {name} is gathered as its {type(part).__name__} has it"
            raise InputError(problem, fix="shard plain tensors: float8 and quantized ones pack what they gather")
        if part.dtype not in (MOVED if part.is_cuda else (*MOVED, torch.float64)):
            problem = f"parameter {name} is {_named(part.dtype)}"
            raise InputError(problem, fix="use float32 or bfloat16: kernels move no other, and sums are float32")


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def scale(inside: Inside, devices: int, *, average: bool) -> float:
    """Return the factor on a unit's sums: stock FSDP2's, or 1."""
    settings = inside.settings()
    if settings["_all_reduce_hook"] is not None:
        raise InputError(f"unit {inside.name} has an all-reduce hook", fix="change .grad after settle() instead")
    factor = settings["gradient_divide_factor"]
    if average:
        return 1 / (factor or devices)
    if factor not in (None, 1.0):
        problem = f"unit {inside.name} divides gradients by {factor:g}, and OnDemand(average=False) gives sums"
        raise InputError(problem, fix="leave average=False out to divide as FSDP2 does")
    return 1.0


def pack(unit: Unit, out: Tensor) -> None:
    """Pack a unit's shard as FSDP2 does: each parameter's rows, padded with zeros, in the gather's dtype."""
    start = 0
    for piece, shard in zip(unit.pieces, unit.inside.shards(), strict=True):
        rows = local(shard).detach().reshape(-1)
        out[start : start + rows.numel()].copy_(rows)
        out[start + rows.numel() : start + piece.numel].zero_()
        start += piece.numel


def packed(unit: Unit, like: Tensor) -> Tensor:
    """Return a unit's current shard, packed."""
    out = torch.empty_like(like)
    pack(unit, out)
    return out


def bits(*tensors: Tensor) -> Iterator[Tensor]:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return (each.view(kinds[each.itemsize]) for each in tensors)


def spread(unit: Unit, given: Tensor, reached: Sequence[bool], devices: int) -> Tensor:
    """Return a unit's gradients with zeros where parameters have none: all parameters' parts of rank 0, then of rank
    1, and so on. FSDP2 packs only parameters with a gradient: if one is used in some microbatches only, all that
    follow it would shift."""
    if given.numel() == unit.shape.push * devices:
        return given
    sizes = [piece.numel for piece in unit.trainable]
    known = len(reached) == len(sizes)  # none was frozen since
    if not known or given.numel() != sum(n for n, is_there in zip(sizes, reached, strict=True) if is_there) * devices:
        raise InputError(
            f"unit {unit.name} reduces {given.numel()} elements, not {unit.shape.push * devices}",
            fix="freeze or unfreeze parameters before OnDemand is made",
        )
    of_each = (torch.tensor(list(each), device="cpu") for each in (reached, sizes))
    columns = torch.repeat_interleave(*of_each).nonzero().flatten()
    whole = given.new_zeros(devices, unit.shape.push)
    whole[:, columns.to(given.device)] = given.view(devices, -1)
    return whole.view(-1)


def set_grads(unit: Unit, total: Tensor, used: Sequence[int], factor: float = 1.0) -> None:
    """Set each parameter's `.grad` from the unit's sum, or to None if no rank used it: AdamW would decay it.

    It is a copy: later pushes do not change a gradient that the user keeps, and the user's changes do not change sums.
    """
    copied, shards = torch.mul(total, factor) if any(used) else total, unit.inside.shards()
    start = 0
    for piece, by_anybody in zip(unit.trainable, used, strict=True):
        shard = shards[piece.index]
        rows = local(shard)
        part = copied[start : start + rows.numel()].view(rows.shape).to(shard.dtype)
        start += piece.numel
        shard.grad = like(shard, part) if by_anybody else None


def like(shard: DTensor, part: Tensor) -> DTensor:
    """Wrap a local tensor as a DTensor with a parameter's mesh and placements."""
    how: Any = {"run_check": False, "shape": shard.shape, "stride": shard.stride()}
    return DTensor.from_local(part, shard.device_mesh, shard.placements, **how)
