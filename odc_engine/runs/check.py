"""Compare gradients of one minibatch of your own model and loop with those of one process.

    with odc_engine.check(odc):
        for batch in mine:
            loss(model, batch).backward()
        odc.settle()

Rank 0 gathers the weights and the inputs that all ranks gave to the model, runs them again in a plain copy of the
model, and prints the largest difference of gradients. It holds the whole model in fp64: use a model of few layers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from odc_engine.errors import EngineError
from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.fsdp.units import Mesh
from odc_engine.runs.replay.plain_copy import as_computed, plain
from odc_engine.runs.replay.recording import Noted, Recording, refuse_empty, replay
from odcsim.errors import InputError

FULL, LOW = 1e-5, 5e-2  # largest differences that fp32 and bf16 explain
FLOOR = 1e-4  # of the largest gradient: below it a parameter's own is noise, as that of a key's bias


@dataclass(frozen=True, slots=True)
class Distances:
    """`parameters`: the largest difference of each parameter, over its largest value in one process."""

    devices: int
    passes: int
    bound: float
    parameters: dict[str, float]

    @property
    def worst(self) -> str:
        return max(self.parameters, key=lambda name: self.parameters[name])

    @property
    def ok(self) -> bool:
        return self.parameters[self.worst] <= self.bound

    def __str__(self) -> str:
        word = "equal" if self.ok else "are NOT equal to"
        return (
            f"{self.passes} microbatches on {self.devices} devices: gradients of {len(self.parameters)} parameters "
            f"{word} one process, largest relative difference {self.parameters[self.worst]:.1e} ({self.worst})"
        )


@contextmanager
def check(odc: OnDemand) -> Iterator[None]:
    """Check one minibatch up to settle(), on all ranks. Raises EngineError if gradients differ."""
    if odc.size == 1:
        raise InputError("a single device has nothing to check", fix="start it with torchrun --nproc-per-node 2")
    recording = Recording(odc.model)
    try:
        yield
        if not odc.settled:
            raise InputError("check() ends before settle()", fix="call settle() inside, and step after it")
        distances = compared(odc, recording.passes)
    finally:
        recording.close()
    tell(odc, distances)


def tell(odc: OnDemand, distances: Distances) -> None:
    if odc.rank == 0 and odc.replicas.speaks:
        print(distances, flush=True)
    if not distances.ok:
        raise EngineError("gradients of one minibatch differ from those of one process")


def compared(odc: OnDemand, passes: Sequence[Noted]) -> Distances:
    """Compare gradients between settle() and publish(), on all ranks."""
    mesh = Mesh.of(odc.units[0].inside)
    every = _of_everybody(mesh, passes)
    refuse_empty(every)
    dtypes = {id(piece.parameter): unit.shape.dtype for unit in odc.units for piece in unit.pieces}
    weights, mine = {}, {}
    for name, parameter in odc.model.named_parameters():
        whole = as_computed(parameter, dtypes.get(id(parameter)))
        gradient = _whole(parameter.grad)
        if odc.rank == 0:
            weights[name], mine[name] = whole, gradient
    first: list[Any] = [None]
    if odc.rank == 0:
        low = any(each.autocast for each in every) or any(dtype != torch.float32 for dtype in dtypes.values())
        found = differences(odc, weights, mine, every)
        first = [Distances(odc.size * odc.replicas.count, len(every), LOW if low else FULL, found)]
    dist.broadcast_object_list(first, group=mesh.devices, group_src=0)
    return cast(Distances, first[0])


def _of_everybody(mesh: Mesh, passes: Sequence[Noted]) -> list[Noted]:
    every = list(passes)
    for devices in (mesh.devices, mesh.replicas):
        if devices is not None:
            rows: list[list[Noted]] = [[] for _ in range(devices.size())]
            dist.all_gather_object(rows, every, group=devices)
            every = [each for row in rows for each in row]
    return every


def _whole(gradient: Any) -> Tensor | None:
    return None if gradient is None else cast(Tensor, gradient.full_tensor()).double()


def differences(
    odc: OnDemand, weights: dict[str, Tensor], mine: dict[str, Tensor | None], every: Sequence[Noted]
) -> dict[str, float]:
    scales = {id(piece.parameter): odc.scales[unit.index] for unit in odc.units for piece in unit.pieces}
    by_name = {name: scales[id(parameter)] for name, parameter in odc.model.named_parameters()}
    expected = {
        name: None if g is None else g * by_name[name] for name, g in _reference(odc.model, weights, every).items()
    }
    floor = FLOOR * max((float(g.abs().max()) for g in expected.values() if g is not None and g.numel()), default=0.0)
    return {name: _relative(mine[name], reference, floor) for name, reference in expected.items()}


def _reference(model: nn.Module, weights: dict[str, Tensor], every: Sequence[Noted]) -> dict[str, Tensor | None]:
    """Compute reference gradients in fp64, or in fp32 if an operation lacks fp64, such as grouped matmuls of
    experts."""
    try:
        return replay(plain(model, weights).double(), every)
    except RuntimeError:
        single = {name: weight.float() for name, weight in weights.items()}
        found = replay(plain(model, single).float(), every)
        return {name: None if gradient is None else gradient.double() for name, gradient in found.items()}


def _relative(mine: Tensor | None, reference: Tensor | None, floor: float) -> float:
    """Return the relative difference. NaN counts as infinite, a missing gradient as zeros."""
    if mine is None or reference is None:
        other = reference if mine is None else mine
        return float(other is not None and bool(other.any()))
    if not reference.numel():
        return 0.0
    difference = float((mine - reference).abs().max())
    scale = max(float(reference.abs().max()), floor)
    relative = difference / scale if scale else difference
    return relative if relative == relative else float("inf")
