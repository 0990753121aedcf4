"""Seconds of a model's layers from what they do and what its GPU reaches: where nobody has measured them.

A layer's forward is its matmuls, its attention and what it moves; nothing of it runs beside the rest, since one stream
takes all kernels in order. It takes no less than its launches. Backward is twice the matmuls and the moving, the
kernel's own rate of attention, and what is computed again.
"""

import math
from collections.abc import Collection

from odcsim.catalog.estimates.rates import INTERVAL, Attention, Precision, Rates, kinds, together
from odcsim.catalog.estimates.work import (
    BACKWARD_MOVES,
    COPIED_OUT,
    DEQUANTIZED,
    HOOKS,
    LAUNCH,
    OPTIMIZERS,
    POLICY,
    STACKS,
    bytes_moved,
    empty_flops,
    matmuls,
    own_seconds,
)
from odcsim.cluster import GPU
from odcsim.errors import InputError, nearest
from odcsim.model import ATTENTION_BACKWARD, BYTES_BF16, LINEAR_BACKWARD, Model
from odcsim.profile import Polynomial, Profile
from odcsim.recipe import AGAIN, CHOICES, PRECISIONS, USUAL, Recipe

PUBLISHED = frozenset(("fitted", "measured", "datasheet"))  # kinds of figures that others stated or showed
PUBLISH_BYTES = 6  # reads an fp32 shard, writes it in bf16
STATE_WIDTH = 128  # the smaller side of matmuls with a state of linear attention: a head
# With the optimizer's states in the host's memory gradients go there and weights come back, over a link of PCIe 4 and
# at what a processor's share of its memory gives AdamW: bytes/s of one device.
HOST_LINK, HOST_MEMORY = 25e9, 20e9
OFFLOADED_BYTES = 6  # a gradient in fp32 there, a weight in bf16 back


def estimate(model: Model, gpu: GPU, rates: Rates, devices: int, recipe: Recipe = USUAL) -> Profile:
    """A profile of medians, with the interval that holds nine runs of ten."""
    stack, loss = STACKS[recipe.kernels.stack], recipe.kernels.loss
    forward, backward = _layer(model, gpu, rates, recipe)
    bandwidth = gpu.memory_bandwidth * rates.moved
    # Logits and loss, both ways. A policy's logits are computed again in backward.
    passes = 1 + (LINEAR_BACKWARD / 2 if recipe.lora else LINEAR_BACKWARD) + (loss == "policy")
    flops = passes * model.head_forward(1.0) * (1 + rates.narrow / model.hidden)
    logit = {"whole": stack.whole, "chunked": stack.chunked, "policy": POLICY}[loss]
    # The optimizer on what of this device's shard is trained.
    trained = model.parameters / devices * trained_share(model, recipe.lora)
    moved = OPTIMIZERS[recipe.optimizer].moved * trained
    if recipe.offload:
        optimizer = moved / HOST_MEMORY + OFFLOADED_BYTES * trained / HOST_LINK
    else:
        optimizer = stack.optimizer * moved / bandwidth
    # How the figures are known; of a GPU's own it counts what is assumed.
    used = {kind for name, kind in rates.kinds.items() if name not in PRECISIONS or name == recipe.kernels.precision}
    every = used | {kernel(rates, recipe.kernels.attention).kind}
    if "matmul_flops" in gpu.assumed:
        every.add("assumed")
    off = math.exp(INTERVAL * together(rates.spreads, kinds(rates.family, model, recipe)))
    return Profile(
        model=model.name,
        gpu=gpu.name,
        fidelity="catalogue",
        origin=_origin(gpu, rates, recipe, used),
        kinds=tuple(sorted(every)),
        forward=forward,
        backward=backward,
        head=Polynomial(linear=flops / (gpu.matmul_flops * rates.matmul) + model.vocab * logit / bandwidth),
        embed=Polynomial(linear=2 * BYTES_BF16 * model.hidden / bandwidth),
        recompute=recipe.recomputes,
        microbatch=stack.host,
        optimizer=optimizer,
        publish=PUBLISH_BYTES * trained / bandwidth + own_seconds(model),
        copying=rates.copying,
        adapters=adapter_parameters(model, recipe.lora) if recipe.lora else 0.0,
        low=1 / off,
        high=off,
    )


def _origin(gpu: GPU, rates: Rates, recipe: Recipe, used: Collection[str]) -> str:
    """Where the rates are from, and beside a figure that is not published how else it is known. `used`: kinds of the
    figures that are not attention's."""
    whose = f"rates of {rates.family} in published runs"
    if unpublished := guessed(used):
        beside = " beside those in published runs" if PUBLISHED.intersection(used) else ""
        whose = f"{' and '.join(unpublished)} rates of {rates.family}{beside}"
    assumed = " (assumed)" if "matmul_flops" in gpu.assumed else ""
    rate = f"matmuls at {rates.matmul:.0%} of {gpu.matmul_flops / 1e12:.0f} TFLOP/s{assumed}"
    again = "with" if recipe.recomputes else "without"
    name = rates.usual if recipe.kernels.attention == "usual" else recipe.kernels.attention
    kind = "".join(f" ({kind})" for kind in guessed({kernel(rates, name).kind}))
    stack = CHOICES["stack"].phrase(recipe.kernels.stack)
    return f"{whose}: {rate}, attention by {name}{kind}, {stack}, {again} recompute"


def guessed(kinds: Collection[str]) -> list[str]:
    """Those of figures that no published run was held against."""
    return [kind for kind in ("chosen", "assumed") if kind in kinds]


def kernel(rates: Rates, name: str) -> Attention:
    """The attention kernel of this name, or the usual one."""
    if (known := rates.attention.get(rates.usual if name == "usual" else name)) is not None:
        return known
    raise InputError(
        f"no rate of attention '{name}' is known on {rates.family}", fix=nearest(name, ["usual", *rates.attention])
    )


def _layer(model: Model, gpu: GPU, rates: Rates, recipe: Recipe) -> tuple[Polynomial, Polynomial]:
    """Seconds of one layer's forward and of its backward: of each pass, per token, and per square of tokens."""
    stack, shapes = STACKS[recipe.kernels.stack], matmuls(model)
    rate, bandwidth = gpu.matmul_flops * rates.matmul, gpu.memory_bandwidth * rates.moved
    name, usual = recipe.kernels.precision, USUAL.kernels.precision
    if name != usual and name not in rates.precisions:
        raise InputError(f"{gpu.name} does not run matmuls in {name}", fix=f"leave --precision at {usual}")
    precision = rates.precisions.get(name, Precision())
    # Per token. Of casts each of a layer's three matmuls has a third, half by what it reads and half by what it writes.
    work = sum(m.flops * (1 + rates.narrow / min(m.inner, m.outer)) for m in shapes)
    cast = precision.cast / 3 / 2 * sum(m.times * (m.inner + m.outer) for m in shapes)
    # The state of linear attention takes small matmuls, in bf16 whatever the others are in.
    state = model.state_flops * (1 + rates.narrow / STATE_WIDTH) / rate
    matmul = work / (rate * precision.faster) + cast / bandwidth
    carried, trained, weights = bytes_moved(model, stack), float(model.layer_parameters), LINEAR_BACKWARD
    if recipe.lora:  # adapters move bytes beside the matmuls that they adapt; no gradients of weights
        read, added = stack.adapter
        carried += BYTES_BF16 * sum(m.times * (read * m.inner + added * m.outer) for m in shapes)
        trained, weights = adapter_parameters(model, recipe.lora), LINEAR_BACKWARD / 2
    moving = carried / bandwidth
    # Attention per square, and per token where samples are short.
    used = kernel(rates, recipe.kernels.attention)
    share = gpu.peak_flops * rates.head_share(model.head_dim)
    softmax = (model.layers - model.linear_layers) / model.layers
    ahead = model.attention_flops_per_square / (share * used.forward)
    back = ATTENTION_BACKWARD * model.attention_flops_per_square / (share * used.backward)
    short, short_back = softmax * ahead * used.short_forward, softmax * back * used.short_backward
    # Of each pass: what matmuls take whatever the tokens; copies of what was gathered and casts of weights; copies of
    # gradients on their way out.
    empty = empty_flops(model) / rate
    out = (COPIED_OUT + precision.cast_weight) * model.layer_parameters / bandwidth
    if recipe.quantized:  # few bytes are gathered; every pass of matmuls makes weights in bf16 of them
        out *= recipe.quantized / BYTES_BF16
        each = recipe.quantized + BYTES_BF16
        empty += each * model.layer_parameters / (gpu.memory_bandwidth * DEQUANTIZED)
    into = (BYTES_BF16 + recipe.sent) * trained / bandwidth
    launches = stack.launches * LAUNCH
    forward = Polynomial(empty + out, matmul + state + moving + short, ahead, floor=launches + HOOKS[0])
    matmuls_again, moving_again, attention_again = AGAIN[recipe.recompute]
    weights += matmuls_again
    linear = (
        weights * matmul
        + (LINEAR_BACKWARD + matmuls_again) * state
        + (BACKWARD_MOVES + moving_again) * moving
        + (short_back + attention_again * short)
    )
    constant = weights * empty + float(recipe.reshard) * out + into
    floor = (2 + max(AGAIN[recipe.recompute])) * launches + HOOKS[1]
    return forward, Polynomial(constant, linear, back + attention_again * ahead, floor=floor)


def trained_share(model: Model, lora: int) -> float:
    """The part of the parameters that is trained."""
    return adapter_parameters(model, lora) * model.layers / model.parameters if lora else 1.0


def adapter_parameters(model: Model, rank: int) -> float:
    """Of one layer: two matrices of this rank for each of its weights."""
    return sum(rank * (m.inner + m.outer) * m.weights for m in matmuls(model))


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
