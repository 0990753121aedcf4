"""What one rank works with: the same for every minibatch, and what a microbatch's steps leave for later ones."""

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


def _nothing() -> Tensor:
    return torch.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A layer's forward, kept for its backward: input and weights by their names in the layer, and the output."""

    input: Tensor
    weights: Mapping[str, Tensor]
    output: Tensor


@dataclass(slots=True, eq=False)
class Pass:
    """What a microbatch's later steps need of its earlier ones: one pass forward and backward.

    The activation goes when the head has read it, since a gradient of its size takes its place.
    """

    batch: Packed
    seconds: Seconds | None
    activation: Tensor = field(default_factory=_nothing)  # forward: what the next layer, then the head reads
    gradient: Tensor = field(default_factory=_nothing)  # backward: the loss's, to what the next layer back has given
    layout: Layout | None = None
    inputs: dict[int, Tensor] = field(default_factory=dict)  # of each layer, which backward computes anew from there
    kept: dict[int, Kept] = field(default_factory=dict)  # layers, where it does not
    head: dict[str, Tensor] = field(default_factory=dict)  # its gradients, until the embedding's join them

    def last_activation(self) -> Tensor:
        """For its last reader: nothing else keeps it."""
        last, self.activation = self.activation, _nothing()
        return last
