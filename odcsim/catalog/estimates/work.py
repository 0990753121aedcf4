"""What one layer does for one token, averaged over layers: matmuls by shape, bytes that are only moved, launches.

FLOPs are those of odcsim.model, to the last one. Bytes are passes over tensors in bf16, read or written: a stack is
what it fuses. A backward moves twice what its forward does.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from odcsim.model import BYTES_BF16, Model

BACKWARD_MOVES = 2.0


@dataclass(frozen=True, slots=True)
class Matmul:
    """A token's row times a matrix."""

    inner: float
    outer: float
    times: float = 1.0  # how often per token, averaged over layers

    @property
    def flops(self) -> float:
        return 2 * self.inner * self.outer * self.times

    @property
    def narrowest(self) -> float:
        return min(self.inner, self.outer)


@dataclass(frozen=True, slots=True)
class Stack:
    """How often work that is no matmul passes over a tensor forward, and what it costs to start it."""

    norm: float  # over the hidden state, for each of two norms; RMSNorm, which is several kernels where nobody fuses it
    residual: float  # over the hidden state, for each of two sums
    rotary: float  # over queries and keys
    gate: float  # over the MLP's inner width, where it is gated
    logits: float  # bytes for each logit of a loss over all of them at once, both ways
    chunked: float  # the same of a loss that is taken chunk by chunk, and its gradient with it
    launches: int  # kernels of a layer's forward
    host: float  # seconds of a microbatch in which the host feeds nothing: loop, reading the loss
    optimizer: float  # how often it passes over its states
    spread: float  # what it adds to the spread of predictions


LAYER_NORM = 2.0  # a kernel of its own in every stack; models whose MLP has no gate use it
ACTIVATION = 2.0  # of an MLP without a gate
# Where a kernel starts every few microseconds at best, whatever it does.
LAUNCH = 7e-6

STACKS = {
    # Packed samples, flash attention, a fused optimizer, PyTorch's modules as they are.
    "tuned": Stack(12.0, 3.0, 6.0, 5.0, 16.0, 10.0, launches=40, host=2e-3, optimizer=1.0, spread=0.0),
    # The same through torch.compile, which fuses what lies between matmuls.
    "compiled": Stack(2.0, 2.0, 2.0, 3.0, 8.0, 8.0, launches=16, host=1e-3, optimizer=1.0, spread=0.03),
    # A trainer of a library of models as it comes: each step of a norm and of rotary embeddings a kernel, copies around
    # attention, a loss in fp32 over all logits, an optimizer that passes over its states operation by operation.
    "plain": Stack(13.0, 6.0, 14.0, 5.0, 30.0, 24.0, launches=110, host=2e-2, optimizer=3.0, spread=0.3),
}


def matmuls(model: Model) -> tuple[Matmul, ...]:
    """Every matmul of one layer."""
    softmax = (model.layers - model.linear_layers) / model.layers
    attention = [Matmul(m.inner, m.outer, m.times * softmax) for m in _attention(model)]
    if model.linear_layers:
        attention.append(Matmul(model.hidden, model.linear_parameters / model.hidden, 1 - softmax))
    return (*attention, *_mlp(model))


def _attention(model: Model) -> Iterator[Matmul]:
    values, wide = model.value_dim or model.head_dim, model.heads * model.head_dim
    if not model.latent_rank:
        queries = (2 if model.gated else 1) * wide
        yield Matmul(model.hidden, queries + model.kv_heads * (model.head_dim + values))
    else:
        if model.query_rank:
            yield Matmul(model.hidden, model.query_rank)
        yield Matmul(model.query_rank or model.hidden, wide)
        yield Matmul(model.hidden, model.latent_rank + model.rotary_dim)
        yield Matmul(model.latent_rank, model.heads * (model.head_dim - model.rotary_dim + values))
    yield Matmul(model.heads * values, model.hidden)


def _mlp(model: Model) -> Iterator[Matmul]:
    if not model.experts:
        yield from _wide(model, model.ffn, 1.0)
        return
    dense = model.dense_layers / model.layers
    yield from _wide(model, model.ffn, model.experts_active * (1 - dense))
    if model.shared_ffn:
        yield from _wide(model, model.shared_ffn, 1 - dense)
    yield Matmul(model.hidden, model.experts, 1 - dense)  # the router
    if dense:
        yield from _wide(model, model.dense_ffn, dense)


def _wide(model: Model, ffn: int, times: float) -> Iterator[Matmul]:
    yield Matmul(model.hidden, ffn, times * (1 if model.plain_mlp else 2))
    yield Matmul(ffn, model.hidden, times)


def inner_width(model: Model) -> float:
    """Of the MLP that one token goes through, averaged over layers."""
    if not model.experts:
        return model.ffn
    dense = model.dense_layers / model.layers
    return (1 - dense) * (model.experts_active * model.ffn + model.shared_ffn) + dense * model.dense_ffn


def moved(model: Model, stack: Stack) -> float:
    """Bytes per token that a layer's forward moves beside its matmuls and its attention."""
    norm = LAYER_NORM if model.plain_mlp else stack.norm
    hidden = 2 * model.hidden * (norm + stack.residual)
    rotated = stack.rotary * (model.heads + model.kv_heads) * model.head_dim
    activated = (ACTIVATION if model.plain_mlp else stack.gate) * inner_width(model)
    sorted_out = 4 * model.experts_active * model.hidden if model.experts else 0  # to its experts and back
    return BYTES_BF16 * (hidden + rotated + activated + sorted_out)
