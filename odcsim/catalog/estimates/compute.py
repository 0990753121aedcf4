"""Seconds of a model's layers from what they do and what its GPU reaches: where nobody has measured them.

A layer's forward is its matmuls, its attention and what it moves; nothing of it runs beside the rest, since one stream
takes all kernels in order. It takes no less than its launches. Backward is twice the matmuls and the moving, the
kernel's own rate of attention, and what is computed again.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from odcsim.catalog.estimates import own
from odcsim.catalog.estimates.rates import Attention, Precision, Rates
from odcsim.catalog.estimates.spreads import INTERVAL, kinds, together
from odcsim.catalog.estimates.work import (
    BACKWARD_MOVES,
    COPIED_OUT,
    HOOKS,
    LAUNCH,
    OPTIMIZERS,
    POLICY,
    STACKS,
    Stack,
    adapted,
    cast,
    matmuls,
    moved,
    padded,
)
from odcsim.cluster import GPU
from odcsim.errors import InputError, nearest
from odcsim.model import ATTENTION_BACKWARD, BYTES_BF16, LINEAR_BACKWARD, Model
from odcsim.profile import Polynomial, Profile
from odcsim.recipe import PRECISIONS, USUAL, Recipe

PUBLISHED = frozenset(("fitted", "measured", "datasheet"))  # kinds of figures that others stated or showed
PUBLISH_BYTES = 6  # reads an fp32 shard, writes it in bf16
# With the optimizer's states in the host's memory gradients go there and weights come back, over a link of PCIe 4 and
# at what a processor's share of its memory gives AdamW: bytes/s of one device.
HOST_LINK, HOST_MEMORY = 25e9, 20e9
OFFLOADED_BYTES = 6  # a gradient in fp32 there, a weight in bf16 back
# Of the matmuls of a forward that recompute by operator runs again: every second one is kept, and attention is.
SELECTIVE = 0.5
# What of a forward backward runs again: of its matmuls, of what it moves, of its attention.
AGAIN = {
    "full": (1.0, 1.0, 1.0),
    "operators": (SELECTIVE, 1.0, 0.0),
    "layers": (0.5, 0.5, 0.5),
    "none": (0.0, 0.0, 0.0),
}


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


def estimate(model: Model, gpu: GPU, rates: Rates, devices: int, recipe: Recipe = USUAL) -> Profile:
    """A profile of medians, with the interval that holds nine runs of ten."""
    found = seconds(model, gpu, rates, recipe, model.parameters / devices)
    off = math.exp(INTERVAL * together(rates.spreads, kinds(rates.family, model, recipe)))
    return Profile(
        model=model.name,
        gpu=gpu.name,
        fidelity="catalogue",
        origin=_origin(gpu, rates, recipe),
        kinds=kinds_used(gpu, rates, recipe),
        forward=found.forward,
        backward=found.backward,
        head=found.head,
        embed=found.embed,
        recompute=recipe.recomputes,
        microbatch=found.microbatch,
        optimizer=found.optimizer,
        publish=found.publish + own.seconds(model),
        copying=rates.copying,
        adapters=adapter_parameters(model, recipe.lora) if recipe.lora else 0.0,
        low=1 / off,
        high=off,
    )


def _origin(gpu: GPU, rates: Rates, recipe: Recipe) -> str:
    """Where the rates are from, and beside a figure that is not published how else it is known."""
    inside = set(_rates_used(rates, recipe).values())
    whose = f"rates of {rates.family} in published runs"
    if guesses := guessed(inside):
        whose = f"{' and '.join(guesses)} rates of {rates.family}"
        whose += " beside those in published runs" if inside & PUBLISHED else ""
    assumed = " (assumed)" if "matmul_flops" in gpu.assumed else ""
    rate = f"matmuls at {rates.matmul:.0%} of {gpu.matmul_flops / 1e12:.0f} TFLOP/s{assumed}"
    again = "with" if recipe.recomputes else "without"
    name = rates.usual if recipe.kernels.attention == "usual" else recipe.kernels.attention
    kind = "".join(f" ({kind})" for kind in guessed({kernel(rates, name).kind}))
    return f"{whose}: {rate}, attention by {name}{kind}, a {recipe.kernels.stack} stack, {again} recompute"


def guessed(kinds: Collection[str]) -> list[str]:
    """Those of figures that no published run was held against."""
    return [kind for kind in ("chosen", "assumed") if kind in kinds]


def kinds_used(gpu: GPU, rates: Rates, recipe: Recipe) -> tuple[str, ...]:
    """How the figures are known that these seconds are made from; of a GPU's own it counts what is assumed."""
    used = {*_rates_used(rates, recipe).values(), kernel(rates, recipe.kernels.attention).kind}
    return tuple(sorted(used | ({"assumed"} if "matmul_flops" in gpu.assumed else set())))


def _rates_used(rates: Rates, recipe: Recipe) -> dict[str, str]:
    unused = {*PRECISIONS} - {recipe.kernels.precision}
    return {name: kind for name, kind in rates.kinds.items() if name not in unused}


def kernel(rates: Rates, name: str) -> Attention:
    """The attention kernel of this name, or the usual one."""
    if (found := rates.attention.get(rates.usual if name == "usual" else name)) is not None:
        return found
    known = ["usual", *rates.attention]
    raise InputError(f"no rate of attention '{name}' is known on {rates.family}", fix=nearest(name, known))


def seconds(model: Model, gpu: GPU, rates: Rates, chosen: Recipe, shard: float) -> Seconds:
    """`shard`: parameters whose states this device holds."""
    stack = STACKS[chosen.kernels.stack]
    layer = _layer(model, gpu, rates, chosen, stack)
    bandwidth = gpu.memory_bandwidth * rates.moved
    trained = shard * trained_share(model, chosen.lora)
    return Seconds(
        forward=layer.forward(),
        backward=layer.backward(AGAIN[chosen.recompute]),
        head=Polynomial(linear=_head(model, gpu, rates, chosen, stack)),
        embed=Polynomial(linear=2 * BYTES_BF16 * model.hidden / bandwidth),
        microbatch=stack.host,
        optimizer=_step(chosen, stack, trained, bandwidth),
        publish=PUBLISH_BYTES * trained / bandwidth,
    )


def _step(chosen: Recipe, stack: Stack, trained: float, bandwidth: float) -> float:
    """Seconds of the optimizer on so many parameters."""
    moved = OPTIMIZERS[chosen.optimizer].moved * trained
    if chosen.offload:
        return moved / HOST_MEMORY + OFFLOADED_BYTES * trained / HOST_LINK
    return stack.optimizer * moved / bandwidth


def trained_share(model: Model, lora: int) -> float:
    """The part of the parameters that is trained."""
    return adapter_parameters(model, lora) * model.layers / model.parameters if lora else 1.0


def adapter_parameters(model: Model, rank: int) -> float:
    """Of one layer: two matrices of this rank for each of its weights."""
    return sum(rank * (m.inner + m.outer) * m.weights for m in matmuls(model))


@dataclass(frozen=True, slots=True)
class _Layer:
    """Seconds of one layer's forward by what they go to: per token, per square, and of each pass."""

    matmul: float
    moved: float
    attention: tuple[float, float]  # per square, and per token where samples are short
    attention_back: tuple[float, float]
    weights: float  # matmuls of backward for one of forward
    padded: float  # of each pass: what its matmuls compute for nobody
    out: float  # ... copies of what was gathered, casts of weights
    into: float  # ... copies of gradients on their way out
    launches: float
    gathers: float  # of backward: 1, or 0 where layers stay whole

    def forward(self) -> Polynomial:
        square, token = self.attention
        return Polynomial(
            self.padded + self.out, self.matmul + self.moved + token, square, floor=self.launches + HOOKS[0]
        )

    def backward(self, again: tuple[float, float, float]) -> Polynomial:
        """`again`: the parts of a forward's matmuls, moving and attention that are run once more."""
        matmul, moving, attention = again
        linear = (self.weights + matmul) * self.matmul + (BACKWARD_MOVES + moving) * self.moved
        linear += self.attention_back[1] + attention * self.attention[1]
        square = self.attention_back[0] + attention * self.attention[0]
        constant = (self.weights + matmul) * self.padded + self.gathers * self.out + self.into
        return Polynomial(constant, linear, square, floor=(2 + max(again)) * self.launches + HOOKS[1])


def _layer(model: Model, gpu: GPU, rates: Rates, chosen: Recipe, stack: Stack) -> _Layer:
    rate, bandwidth = gpu.matmul_flops * rates.matmul, gpu.memory_bandwidth * rates.moved
    work = sum(m.flops * (1 + rates.narrow / m.narrowest) for m in matmuls(model))
    carried = moved(model, stack) + (adapted(model, stack) if chosen.lora else 0.0)
    precision = _precision(gpu, rates, chosen)
    trained = adapter_parameters(model, chosen.lora) if chosen.lora else model.layer_parameters
    used = kernel(rates, chosen.kernels.attention)
    share = gpu.peak_flops * rates.head_share(model.head_dim)
    square = model.attention_flops_per_square
    softmax = (model.layers - model.linear_layers) / model.layers
    ahead, back = square / (share * used.forward), ATTENTION_BACKWARD * square / (share * used.backward)
    return _Layer(
        matmul=work / (rate * precision.faster) + cast(model, precision.cast) / bandwidth,
        moved=carried / bandwidth,
        attention=(ahead, softmax * ahead * used.short_forward),
        attention_back=(back, softmax * back * used.short_backward),
        weights=LINEAR_BACKWARD / 2 if chosen.lora else LINEAR_BACKWARD,
        padded=padded(model) / rate,
        out=(COPIED_OUT + precision.cast_weight) * model.layer_parameters / bandwidth,
        into=(BYTES_BF16 + chosen.sent) * trained / bandwidth,
        launches=stack.launches * LAUNCH,
        gathers=float(chosen.reshard),
    )


def _precision(gpu: GPU, rates: Rates, chosen: Recipe) -> Precision:
    name, usual = chosen.kernels.precision, USUAL.kernels.precision
    if name != usual and name not in rates.precisions:
        raise InputError(f"{gpu.name} does not run matmuls in {name}", fix=f"leave --precision at {usual}")
    return rates.precisions.get(name, Precision())


def _head(model: Model, gpu: GPU, rates: Rates, chosen: Recipe, stack: Stack) -> float:
    """Seconds per token of logits and loss, both ways. A policy's logits are computed again in backward."""
    policy = chosen.kernels.loss == "policy"
    passes = 1 + (LINEAR_BACKWARD / 2 if chosen.lora else LINEAR_BACKWARD) + policy
    flops = passes * model.head_forward(1.0) * (1 + rates.narrow / model.hidden)
    each = {"whole": stack.whole, "chunked": stack.chunked, "policy": POLICY}[chosen.kernels.loss]
    return flops / (gpu.matmul_flops * rates.matmul) + model.vocab * each / (gpu.memory_bandwidth * rates.moved)


def flops(model: Model, recipe: Recipe, tokens: float, squares: float) -> tuple[float, float]:
    """Of a step on so many tokens: the model's own, and those of what backward computes again.

    A model's own are three forwards: six for each parameter that multiplies a token, and of attention what a causal
    mask leaves, which is half. The scores that a kernel's backward computes once more are computed again.
    """
    forward = model.layer_forward(tokens, squares)
    backward = LINEAR_BACKWARD * forward
    head = model.head_forward(tokens) + model.head_backward(tokens)
    if recipe.lora:  # no gradients of weights
        linear = 2 * model.layer_matmul_parameters * tokens
        backward, head = backward - linear, head - model.head_forward(tokens)
    matmul, _, attention = AGAIN[recipe.recompute]
    attention += ATTENTION_BACKWARD - LINEAR_BACKWARD
    again = matmul * model.layer_forward(tokens, 0.0) + attention * model.layer_forward(0.0, squares)
    return model.layers * (forward + backward) + head, model.layers * again
