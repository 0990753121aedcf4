"""What one layer does for one token, averaged over layers: matmuls by shape, bytes that are only moved, launches.

FLOPs are those of odcsim.model, to the last one. Bytes are passes over tensors in bf16, read or written: a stack is
what it fuses. A backward moves twice what its forward does.
"""

from dataclasses import dataclass

from odcsim.model import BYTES_BF16, BYTES_FP32, Model

BACKWARD_MOVES = 2.0
# A token's copies to its experts and back: gathered (2 passes over the hidden state of each), multiplied by their
# scores in fp32 (cast 3, product 4, cast 3) and added up (2).
SORTED = 14.0
# What FSDP2 does beside moving a layer: a gather lands in one buffer and is copied out to its parameters (read and
# written in bf16). Gradients are cast to what they travel in, and sorted by rank.
COPIED_OUT = 4.0
# Share of the memory's bandwidth at which 4-bit weights become bf16 ones, in each pass over a layer: by pairs of runs
# with LoRA and QLoRA on one A100 (LitGPT's resource tables, bitsandbytes 0.41.1: 0.20 to 0.28, from 13B to 3B; a test
# has them). A later kernel is 1.4 to 2.1 times as fast on A100 and H100 (pull requests 1746 and 1747 of
# github.com/bitsandbytes-foundation/bitsandbytes); nobody published such a pair of runs with it.
DEQUANTIZED = 0.24
# A tile of a grouped matmul has this many rows; the last one of each expert is half empty.
TILE = 128


@dataclass(frozen=True, slots=True)
class Matmul:
    """A token's row times a matrix."""

    inner: float
    outer: float
    times: float = 1.0  # how often per token, averaged over layers
    weights: float = 1.0  # how many such matrices a layer has, on average

    @property
    def flops(self) -> float:
        return 2 * self.inner * self.outer * self.times


@dataclass(frozen=True, slots=True)
class Stack:
    """How often work that is no matmul passes over a tensor forward, and what it costs to start it."""

    norm: float  # over the hidden state, for each of two norms; RMSNorm, which is several kernels where nobody fuses it
    residual: float  # over the hidden state, for each of two sums
    rotary: float  # over queries and keys
    gate: float  # over the MLP's inner width, where it is gated
    adapter: tuple[float, float]  # over what an adapter reads and what it adds to, forward
    whole: float  # bytes for each logit of a loss over all of them at once, both ways
    chunked: float  # the same of a loss that is taken chunk by chunk, and its gradient with it
    launches: int  # kernels of a layer's forward
    host: float  # seconds of a microbatch in which the host feeds nothing: loop, reading the loss
    optimizer: float  # how often it passes over its states
    logit: int  # bytes of one at the peak of a loss over all of them
    unfused: int  # elements of bf16 over the hidden state that two norms of several kernels keep, their inputs in fp32
    compiled: bool = False  # by torch.compile, beside FSDP2's own hooks


LAYER_NORM = 2.0  # a kernel of its own in every stack; models whose MLP has no gate use it
ACTIVATION = 2.0  # of an MLP without a gate
# Where a kernel starts every few microseconds at best, whatever it does.
LAUNCH = 7e-6
# What FSDP2's hooks around a layer take of the host besides, forward and backward: timed on a CPU, of layers so small
# that nothing else takes time (`docs/studies/hooks.py`, docs/log.md).
HOOKS = (3.5e-4, 5.5e-4)

# A loss of PyTorch's own operations, bytes for each logit: the matmul writes it in bf16 (2), a copy in fp32 (6), the
# log-softmax (12), its gradient (4 for zeros, 12), cast to bf16 (6), read by two matmuls (4), and once more shifted
# where a trainer does that (8).
OPERATIONS, SHIFTED = 46.0, 8.0
# Of log-probabilities and entropy, chunk by chunk, as RL trainers take them (prime-rl's chunked_logprobs.py):
# forward writes (2), casts (6), scales (8), and takes the largest (4), differences, exponentials (16) and two weighted
# sums (20); backward writes them again (2), casts, scales (14), takes differences, exponentials, gradients (32), casts
# those twice (12) and reads them in two matmuls (4).
POLICY = 120.0
# A loss over all logits has most in the backward of cross-entropy in fp32: log-probabilities, their gradient, and that
# of the logits. A trainer as it comes has as much in its forward already, where it shifts them. Around a compiled stack
# some loops hold on to them until backward is over (4 in fp32), and some do not: as if in bf16.
PEAK = 3 * BYTES_FP32

STACKS = {
    # Packed samples, flash attention, a fused optimizer and loss, PyTorch's modules as they are.
    "tuned": Stack(12.0, 3.0, 6.0, 5.0, (1.0, 3.0), 16.0, 10.0, 40, 2e-3, 1.0, PEAK, 4),
    # Layers through torch.compile, which fuses what lies between matmuls; a loss over all logits is in no layer.
    "compiled": Stack(2.0, 2.0, 2.0, 3.0, (1.25, 4.0), OPERATIONS, 8.0, 16, 1e-3, 1.0, PEAK + BYTES_BF16, 0, True),
    # A trainer of a library of models as it comes: each step of a norm and of rotary embeddings a kernel, copies around
    # attention, a loss in fp32 over all logits, an optimizer that passes over its states operation by operation.
    "plain": Stack(13.0, 6.0, 14.0, 5.0, (1.25, 4.0), OPERATIONS + SHIFTED, 24.0, 110, 2e-2, 3.0, PEAK, 6),
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What AdamW keeps of a parameter and moves in a step, in bytes, by the type of its moments."""

    moved: int  # weights, gradients and moments are read, and all but the gradients written
    moments: int  # both of them, beside the master weights (ZeRO, arXiv 1910.02054, section 3.1)
    roots: int  # of second moments, of all weights at once, as PyTorch takes them; quantized ones are read in blocks
    master: int = BYTES_FP32  # a weight, and a gradient of one


OPTIMIZERS = {
    "fp32": Optimizer(28, 8, 4),
    "bf16": Optimizer(20, 4, 2),
    "8bit": Optimizer(16, 2, 0),
    "pure": Optimizer(14, 4, 2, BYTES_BF16),
}
# Elements per token, head and token before it that a kernel of attention writes down: scores in fp32, weights in bf16.
SCORES = {"eager": 3.0}


# What on-demand adds to every minibatch on the host and moves no bytes: the engine's own, to settle, to publish and to
# meet again, and for each unit; 2 or 4 devices make little difference. `docs/studies/own_price.py` measures it, of
# processes that share memory on a CPU (docs/engine/measured.md). Beside a GPU nobody has: the same Python runs there.
# Stock collectives have none of it.
OWN, OWN_UNIT = 8e-4, 2e-4
OWN_ORIGIN = "the engine's host work, measured with processes of a CPU and not beside a GPU"


def own_seconds(model: Model) -> float:
    """Of on-demand and a minibatch, beside what moves bytes."""
    return OWN + OWN_UNIT * (model.layers + 1)


def matmuls(model: Model) -> tuple[Matmul, ...]:
    """Every matmul of one layer."""
    hidden = model.hidden
    every = [Matmul(inner, outer, layers / model.layers) for inner, outer, layers in model.attention_matmuls]
    if not model.experts:
        return (*every, *_mlp(model, model.ffn))
    dense = model.dense_layers / model.layers
    every += _mlp(model, model.ffn, model.experts_active * (1 - dense), model.experts * (1 - dense))
    if model.shared_ffn:
        every += _mlp(model, model.shared_ffn, 1 - dense, 1 - dense)
    every.append(Matmul(hidden, model.experts, 1 - dense, 1 - dense))  # the router
    if dense:
        every += _mlp(model, model.dense_ffn, dense, dense)
    return tuple(every)


def _mlp(model: Model, ffn: int, times: float = 1.0, weights: float = 1.0) -> list[Matmul]:
    """Of an MLP of this width, if there is one."""
    if not ffn:
        return []
    up = 1 if model.plain_mlp else 2
    return [Matmul(model.hidden, ffn, times * up, weights * up), Matmul(ffn, model.hidden, times, weights)]


def empty_flops(model: Model) -> float:
    """Matmul FLOPs of a layer's forward that go to the empty half of experts' last tiles, whatever the tokens."""
    if not model.experts:
        return 0.0
    sparse = 1 - model.dense_layers / model.layers
    return sparse * model.experts * sum(m.flops for m in _mlp(model, model.ffn)) * TILE / 2


def bytes_moved(model: Model, stack: Stack) -> float:
    """Bytes per token that a layer's forward moves beside its matmuls and its attention."""
    norm = LAYER_NORM if model.plain_mlp else stack.norm
    hidden = 2 * model.hidden * (norm + stack.residual * (1 + model.streams))
    rotated = stack.rotary * (model.heads + model.kv_heads) * model.head_dim
    width: float = model.ffn  # of the MLP that one token goes through, averaged over layers
    sorting = 0.0
    if model.experts:
        dense = model.dense_layers / model.layers
        width = (1 - dense) * (model.experts_active * model.ffn + model.shared_ffn) + dense * model.dense_ffn
        sorting = SORTED * model.experts_active * model.hidden
    activation = (ACTIVATION if model.plain_mlp else stack.gate) * width
    return BYTES_BF16 * (hidden + rotated + activation + sorting)
