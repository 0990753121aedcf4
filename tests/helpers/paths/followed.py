"""A kind on devices, on demand, and in one process that knows of no engine."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from odc_engine import OnDemand
from odc_engine.record import Silence
from paths.kind import Gradients, Kind

NEAR = 1e-6  # of a gradient; models are in fp64, sums in an arena in fp32
LEAST = 1e-6  # of the model's largest gradient: what is less is nothing but rounding, as of the bias of a key


class Moved(Silence):
    """Counts transfers of units."""

    def __init__(self) -> None:
        self.gathers: Counter[int] = Counter()
        self.pushes: Counter[int] = Counter()

    def given(self, kind: str, unit: int) -> int:
        {"gather": self.gathers, "push": self.pushes}[kind][unit] += 1
        return 0


@dataclass(frozen=True)
class Followed:
    """What came of it on a device, or in one process: gradients, logits of an evaluation, and of each unit beside the
    root how many bytes this device has pulled and pushed (in one process: whether each rank uses it)."""

    gradients: Gradients
    logits: list[Tensor]
    moved: dict[str, int]


def on_demand(rank: int, kind: Kind) -> Followed:
    torch.set_num_threads(1)
    model, moved = kind.sharded(), Moved()
    odc = OnDemand(model, recorder=moved, average=False, timeout=60)
    try:
        if kind.evaluates:
            return Followed({}, kind.evaluated(model, rank), _bytes(odc, moved))
        kind.backward(model, rank)
        odc.settle()
        gradients = whole_gradients(model)
        return Followed(gradients if rank == 0 else {}, [], _bytes(odc, moved))
    finally:
        odc.close()


def _bytes(odc: OnDemand, moved: Moved) -> dict[str, int]:
    """Gathers move what is published, pushes sums in fp32."""
    return {
        unit.name: odc.size
        * (
            moved.gathers[unit.index] * unit.shape.gather * unit.shape.dtype.itemsize
            + moved.pushes[unit.index] * unit.shape.push * 4
        )
        for unit in odc.units
    }


def whole_gradients(model: nn.Module) -> Gradients:
    """Of all that are trained: FSDP2 has other names for none of them."""
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.requires_grad}


def whole(value: Tensor | None) -> Tensor | None:
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return None if value is None else value.detach().clone()


@dataclass(frozen=True)
class Alone:
    """One process in the place of all ranks. `uses`: units beside the root that each rank's microbatches go through."""

    gradients: Gradients
    logits: list[list[Tensor]]
    uses: list[set[str]]
    units: frozenset[str]
    shapes: dict[str, torch.Size]


def alone(kind: Kind) -> Alone:
    model, uses, logits = kind.fresh(), [], []
    names = kind.names(model)
    for rank in range(kind.ranks):
        with _noted(names) as seen:
            if kind.evaluates:
                logits.append(kind.evaluated(model, rank))
            else:
                kind.backward(model, rank)
        uses.append(seen)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return Alone(whole_gradients(model), logits, uses, frozenset(names), shapes)


@contextmanager
def _noted(names: dict[str, nn.Module]) -> Iterator[set[str]]:
    seen: set[str] = set()
    hooks = [module.register_forward_hook(lambda *_, name=name: seen.add(name)) for name, module in names.items()]
    yield seen
    for hook in hooks:
        hook.remove()


def apart(found: Gradients, expected: Gradients) -> float:
    """The largest difference of a parameter's gradient, in parts of its largest value. A gradient where one process
    has none, or none where it has one, is as far as can be."""
    without, meant = ({name for name, value in each.items() if value is None} for each in (found, expected))
    if without != meant:
        return float("inf")
    floor = LEAST * max(float(value.abs().max()) for value in expected.values() if value is not None)
    pairs = ((found[name], value) for name, value in expected.items() if value is not None)
    return max(float((mine - one).abs().max()) / max(float(one.abs().max()), floor) for mine, one in pairs)


def apart_in_logits(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True))
