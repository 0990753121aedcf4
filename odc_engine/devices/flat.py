"""Units whose parameters lie end to end in one flat tensor, cut into as many equal parts as there are ranks."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odc_engine.decoder.model import Decoder
from odc_engine.memory.arena import UnitShape


@dataclass(frozen=True, slots=True)
class FlatUnit:
    """Parameters that are gathered and pushed as one. Padding at the end gets no gradient."""

    shapes: dict[str, torch.Size]
    shape: UnitShape
    padding: int

    def views(self, whole: Tensor) -> dict[str, Tensor]:
        """Return the parameters as views of the whole unit."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = torch.split(whole[: whole.numel() - self.padding], sizes)
        return {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the whole unit, concatenated from its parameters or their gradients."""
        parts = [tensors[name].reshape(-1) for name in self.shapes]
        return torch.cat([*parts, parts[0].new_zeros(self.padding)])


def flat_units(model: Decoder, devices: int, dtype: torch.dtype = torch.float32) -> tuple[FlatUnit, ...]:
    """Return the root (parameters outside layers) and the layers: the units that `sharding.shard` makes. `dtype`: of
    gathered weights."""
    root = {n: p for n, p in model.named_parameters() if not n.startswith("layers.")}
    layers = [dict(layer.named_parameters(f"layers.{i}")) for i, layer in enumerate(model.layers)]
    return tuple(
        _unit(name, parameters, devices, dtype)
        for name, parameters in [("root", root), *((f"layers.{i}", layer) for i, layer in enumerate(layers))]
    )


def _unit(name: str, parameters: Mapping[str, nn.Parameter], devices: int, dtype: torch.dtype) -> FlatUnit:
    total = sum(p.numel() for p in parameters.values())
    part = -(-total // devices)
    shapes = {n: p.shape for n, p in parameters.items()}
    return FlatUnit(shapes, UnitShape(name, part, part, dtype), part * devices - total)
