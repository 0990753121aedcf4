"""Seconds of a model's layers from what they do and what its GPU reaches: where nobody has measured them.

A layer's forward is its matmuls, its attention and what it moves; nothing of it runs beside the rest, since one stream
takes all kernels in order. It takes no less than its launches. Backward is twice the matmuls and the moving, the
kernel's own rate of attention, and what is computed again.
"""

import math
from dataclasses import dataclass, replace

from odcsim.cluster import GPU
from odcsim.errors import InputError, nearest
from odcsim.estimates.rates import Attention, Rates
from odcsim.estimates.work import BACKWARD_MOVES, LAUNCH, STACKS, Stack, matmuls, moved
from odcsim.model import ATTENTION_BACKWARD, BYTES_BF16, LINEAR_BACKWARD, Model
from odcsim.profile import Polynomial

RECOMPUTE = ("full", "selective", "layer", "none")
OPTIMIZERS = {"fp32": 28, "bf16": 20, "8bit": 16}  # bytes of AdamW's step: fp32 weights and gradients, moments as named
PRECISIONS = ("bf16", "fp8")
LOSSES = ("chunked", "whole")
# An adapter reads its input and adds to its output beside the matmul that it adapts: passes over the two, forward.
ADAPTER_IN, ADAPTER_OUT = 1.0, 3.0
# Of the part of a forward that recompute by operator runs again: every second matmul is kept, and attention is.
SELECTIVE = 0.5


@dataclass(frozen=True, slots=True)
class Choices:
    """How a step is run, as far as its compute goes."""

    stack: str = "tuned"
    attention: str = ""  # empty: what most people run on the GPU
    recompute: str = "full"
    precision: str = "bf16"
    loss: str = "chunked"
    optimizer: str = "fp32"
    lora: int = 0  # rank of adapters on every matmul of a layer, with all else frozen; 0: everything is trained


@dataclass(frozen=True, slots=True)
class Seconds:
    """One layer forward and backward, the head with its loss both ways, and a microbatch's and minibatch's rest."""

    forward: Polynomial
    backward: Polynomial
    head: Polynomial
    embed: Polynomial
    microbatch: float
    optimizer: float
    publish: float


def kernel(rates: Rates, name: str) -> Attention:
    """The attention kernel of this name, or the usual one."""
    if (found := rates.attention.get(name or rates.usual)) is not None:
        return found
    known = list(rates.attention)
    raise InputError(f"no rate of attention '{name}' is known on {rates.family}", fix=nearest(name, known))


def seconds(model: Model, gpu: GPU, rates: Rates, chosen: Choices, shard: float) -> Seconds:
    """`shard`: parameters whose states this device holds."""
    stack = STACKS[chosen.stack]
    layer = _layer(model, gpu, rates, chosen, stack)
    bandwidth = gpu.memory_bandwidth * rates.moved
    trained = shard * trained_share(model, chosen.lora)
    return Seconds(
        forward=layer.forward(),
        backward=layer.backward(chosen.recompute),
        head=Polynomial(linear=_head(model, gpu, rates, chosen, stack)),
        embed=Polynomial(linear=2 * BYTES_BF16 * model.hidden / bandwidth),
        microbatch=stack.host,
        optimizer=stack.optimizer * OPTIMIZERS[chosen.optimizer] * trained / bandwidth,
        publish=PUBLISH_BYTES * trained / bandwidth,
    )


PUBLISH_BYTES = 6  # reads an fp32 shard, writes it in bf16


def trained_share(model: Model, lora: int) -> float:
    """The part of the parameters that is trained."""
    return adapter_parameters(model, lora) * model.layers / model.parameters if lora else 1.0


def adapter_parameters(model: Model, rank: int) -> float:
    """Of one layer: two matrices of this rank for each of its matmuls, as often as there are such weights."""
    active = model.experts_active * model.ffn + model.shared_ffn
    stored = (model.experts * model.ffn + model.shared_ffn) / active if model.experts else 1.0
    return sum(rank * (m.inner + m.outer) * max(1.0, m.times * stored) for m in matmuls(model))


@dataclass(frozen=True, slots=True)
class _Layer:
    """Seconds per token of one layer's forward by what they go to, and per square and per token of its attention."""

    matmul: float
    moved: float
    attention: tuple[float, float]  # per square, and per token where samples are short
    attention_back: tuple[float, float]
    weights: float  # matmuls of backward for one of forward
    launches: float

    def forward(self) -> Polynomial:
        square, token = self.attention
        return Polynomial(0.0, self.matmul + self.moved + token, square, floor=self.launches)

    def backward(self, recompute: str) -> Polynomial:
        square, token = self.attention_back
        linear = self.weights * self.matmul + BACKWARD_MOVES * self.moved + token
        back = Polynomial(0.0, linear, square, floor=2 * self.launches)
        again = self._again(recompute)
        return Polynomial(
            0.0, back.linear + again.linear, back.quadratic + again.quadratic, floor=back.floor + again.floor
        )

    def _again(self, recompute: str) -> Polynomial:
        first = self.forward()
        if recompute == "selective":
            return Polynomial(linear=SELECTIVE * self.matmul + self.moved, floor=first.floor)
        share = {"full": 1.0, "layer": 0.5, "none": 0.0}[recompute]
        return replace(first, linear=share * first.linear, quadratic=share * first.quadratic, floor=share * first.floor)


def _layer(model: Model, gpu: GPU, rates: Rates, chosen: Choices, stack: Stack) -> _Layer:
    rate = gpu.matmul_flops * rates.matmul
    work = sum(m.flops * (1 + rates.narrow / m.narrowest) for m in matmuls(model))
    carried = moved(model, stack)
    if chosen.lora:
        carried += BYTES_BF16 * sum(m.times * (ADAPTER_IN * m.inner + ADAPTER_OUT * m.outer) for m in matmuls(model))
    used = kernel(rates, chosen.attention)
    share = gpu.peak_flops * rates.head_share(model.head_dim)
    square = model.attention_flops_per_square
    softmax = (model.layers - model.linear_layers) / model.layers
    ahead, back = square / (share * used.forward), ATTENTION_BACKWARD * square / (share * used.backward)
    return _Layer(
        matmul=work / (rate * _fp8(rates, chosen)),
        moved=carried / (gpu.memory_bandwidth * rates.moved),
        attention=(ahead, softmax * ahead * used.short_forward),
        attention_back=(back, softmax * back * used.short_backward),
        weights=LINEAR_BACKWARD / 2 if chosen.lora else LINEAR_BACKWARD,
        launches=stack.launches * LAUNCH,
    )


def _fp8(rates: Rates, chosen: Choices) -> float:
    if chosen.precision == "bf16":
        return 1.0
    if not rates.fp8:
        raise InputError(f"{rates.family} has no matmuls in fp8", fix="leave --precision at bf16")
    return rates.fp8


def _head(model: Model, gpu: GPU, rates: Rates, chosen: Choices, stack: Stack) -> float:
    """Seconds per token of logits and loss, both ways."""
    weights = LINEAR_BACKWARD / 2 if chosen.lora else LINEAR_BACKWARD
    flops = (1 + weights) * model.head_forward(1.0) * (1 + rates.narrow / model.hidden)
    carried = model.vocab * (stack.logits if chosen.loss == "whole" else stack.chunked)
    return flops / (gpu.matmul_flops * rates.matmul) + carried / (gpu.memory_bandwidth * rates.moved)


def spread(rates: Rates, model: Model, chosen: Choices) -> float:
    """Standard deviation of the logarithm of a step's seconds: what cells left out showed, wider for what none covers.

    Experts and linear attention lean on kernels that differ more than matmuls do. Rates that nobody held against a
    step in fp8, or with adapters, are those of kernels alone.
    """
    parts = [rates.spread, STACKS[chosen.stack].spread]
    parts += [0.25] if model.experts or model.linear_layers else []
    parts += [0.1] if chosen.precision == "fp8" else []
    parts += [0.1] if chosen.lora else []
    return math.sqrt(sum(part * part for part in parts))
