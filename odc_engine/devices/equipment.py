"""What one device works with: the same for every minibatch, and what a microbatch's steps leave for later ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from odc_engine.decoder.attention import Layout
from odc_engine.decoder.model import Decoder
from odc_engine.devices.flat import FlatUnit
from odc_engine.devices.workload import Seconds
from odc_engine.memory.arena import Arena
from odc_engine.packed import Packed
from odc_engine.places.lanes import Lane
from odc_engine.places.place import Buffers, Place
from odc_engine.record import Clock
from odcsim.recipe import Recipe


@dataclass(frozen=True, slots=True, eq=False)
class Equipment:
    """What one device works with, minibatch after minibatch. The model is code and shapes; its weights are gathered."""

    model: Decoder
    units: tuple[FlatUnit, ...]
    arena: Arena
    lanes: dict[str, Lane]
    place: Place
    clock: Clock
    recipe: Recipe
    buffers: Buffers = field(default_factory=Buffers)

    def module(self, unit: int) -> nn.Module:
        layer: nn.Module = self.model.layers[unit - 1]
        return layer


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A layer's forward, kept for its backward: input and weights by their names in the layer, and the output."""

    x: Tensor
    weights: Mapping[str, Tensor]
    output: Tensor


@dataclass(slots=True, eq=False)
class Pass:
    """What a microbatch's later steps need of its earlier ones."""

    batch: Packed
    seconds: Seconds | None
    x: Tensor = field(default_factory=lambda: torch.empty(0))  # on the way forward; then the loss's gradient to it
    place: Layout | None = None
    inputs: dict[int, Tensor] = field(default_factory=dict)  # of each layer, which backward computes anew from there
    kept: dict[int, Kept] = field(default_factory=dict)  # layers, where it does not
    head: dict[str, Tensor] = field(default_factory=dict)  # its gradients, until the embedding's join them
