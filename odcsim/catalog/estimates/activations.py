"""Bytes of activations and logits: what one microbatch keeps for its backward, and what a layer needs while it runs.

Counted in elements of bf16 for each token, averaged over layers: hidden states around the norms, queries, keys, values
and attention's output, the MLP's gate, up, its activation and product. Bytes that tensors hold: what an allocator loses
between them is the memory estimate's.
"""

from odcsim.catalog.estimates.work import SCORES, STACKS
from odcsim.model import BYTES_BF16, BYTES_FP32, Model
from odcsim.recipe import Recipe

# A chunk's are in bf16, in fp32 for the loss, and their gradient in bf16.
CHUNKED = BYTES_BF16 + BYTES_FP32 + BYTES_BF16
# An RL trainer takes log-probabilities and entropy of all tokens, so many words at a time: in backward logits in fp32,
# probabilities, their gradient, and that by the temperature.
WORDS, POLICY = 2048, 4 * BYTES_FP32
# Copies of a token for each expert that it visits, in elements of bf16. Forward keeps what goes in, and in fp32 what
# comes out, which a score weighs. Backward of the weighing has its gradient, the same in fp32, that times the score,
# and that times what came out.
TO_EXPERTS = 1 + 2
FROM_EXPERTS = 1 + 2 + 2 + 2
# Of the MLP's width at once in its backward: gate, up, activation, and gradients of product, up and activation. Without
# a gate: what went into the activation, and gradients behind and before it.
AT_ONCE, AT_ONCE_PLAIN = 6, 3


def kept(model: Model, tokens: int, longest: int, recipe: Recipe) -> float:
    """What all layers keep from their forward to their backward."""
    saved = model.layers * model.hidden
    everything = model.layers * (_around(model, recipe) + _within(model, recipe))
    elements = {
        "none": everything,
        "layers": (saved + everything) / 2,
        "operators": saved + model.layers * _products(model, recipe),
        "full": saved,
    }[recipe.recompute]
    scores = model.layers * _scores(model, longest, recipe) if recipe.recompute in ("none", "layers") else 0.0
    return float(BYTES_BF16 * tokens) * (elements + scores)


def held(model: Model, tokens: int, devices: int, recipe: Recipe) -> float:
    """Gradients of all layers' inputs: FSDP1's hooks for frozen weights keep each, and the input with it, until all of
    backward is over, where PyTorch's reentrant checkpoint runs layers again."""
    if devices == 1 or not recipe.lora or recipe.recompute != "full" or STACKS[recipe.kernels.stack].compiled:
        return 0.0
    return float(BYTES_BF16 * tokens) * model.layers * model.hidden


def working(model: Model, tokens: int, longest: int, recipe: Recipe) -> float:
    """Of the layer whose backward runs: all that it computed again, and the gradients of its MLP, its output and its
    input, where they are most at once."""
    again = _around(model, recipe) - model.hidden if recipe.recomputes else 0.0
    scores = 2 * _scores(model, longest, recipe) if recipe.recomputes else _scores(model, longest, recipe)
    return float(BYTES_BF16 * tokens) * (again + 2 * model.hidden + _inside(model, recipe) + scores)


def logits(model: Model, tokens: int, recipe: Recipe) -> float:
    if recipe.kernels.loss == "whole":
        return float(tokens) * model.vocab * STACKS[recipe.kernels.stack].logit
    if recipe.kernels.loss == "policy":
        return float(tokens) * min(model.vocab, WORDS) * POLICY
    return float(chunk(model, tokens)) * model.vocab * CHUNKED


def chunk(model: Model, tokens: int) -> int:
    """Tokens whose loss is taken at a time, as Liger Kernel's fused cross-entropy takes it: a power of two, so that
    their logits are about as many as the hidden states of all tokens."""
    each = -(-tokens // -(-model.vocab // model.hidden))
    return min(tokens, 1 << max(0, each - 1).bit_length())


def _mlp(model: Model) -> float:
    return max(model.experts_active * model.ffn + model.shared_ffn if model.experts else model.ffn, model.dense_ffn)


def _around(model: Model, recipe: Recipe) -> float:
    """Of one layer what its backward reads outside the MLP: queries, keys, values and attention's output among it."""
    norms = 0 if model.plain_mlp else STACKS[recipe.kernels.stack].unfused
    return (4 + norms) * model.hidden + 2 * (model.heads + model.kv_heads) * model.head_dim


def _within(model: Model, recipe: Recipe) -> float:
    """Of one layer what the MLP's backward reads."""
    inner = 2 if model.plain_mlp else 3 if STACKS[recipe.kernels.stack].compiled else 4
    return inner * _mlp(model) + TO_EXPERTS * _visits(model)


def _inside(model: Model, recipe: Recipe) -> float:
    """What the MLP has of its own and of gradients where it is most: in its backward; with experts mostly before it,
    where what came out of them was weighed. Without recompute its own is kept, and counted there."""
    own = _within(model, recipe)
    backward = (AT_ONCE_PLAIN if model.plain_mlp else AT_ONCE) * _mlp(model) + TO_EXPERTS * _visits(model)
    most = max(own + FROM_EXPERTS * _visits(model), backward)
    return most if recipe.recomputes else most - own


def _visits(model: Model) -> float:
    """A token's hidden state, once for each expert that it visits."""
    return float(model.experts_active * model.hidden)


def _products(model: Model, recipe: Recipe) -> float:
    """What recompute by operator keeps: attention's output, and every second matmul's, counted from the first. The last
    one's is what comes out of the layer, which no backward reads: a compiler leaves it out."""
    queries, shared = model.heads * model.head_dim, model.kv_heads * model.head_dim
    last = 0 if STACKS[recipe.kernels.stack].compiled else model.hidden
    return queries + (queries + shared + _mlp(model) + last)


def _scores(model: Model, longest: int, recipe: Recipe) -> float:
    """Elements per token of attention's matrices, where a kernel writes them down."""
    return SCORES.get(recipe.kernels.attention, 0.0) * model.heads * longest
