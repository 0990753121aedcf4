"""Bytes of activations and logits: what one microbatch keeps for its backward, and what a layer needs while it runs.

Counted in elements of bf16 for each token, averaged over layers: hidden states around the norms, queries, keys, values
and attention's output, the MLP's gate, up, its activation and product.
"""

from odcsim.model import BYTES_BF16, BYTES_FP32, Model
from odcsim.recipe import Recipe

# The loss is taken over this many tokens at a time; all at once, 64K tokens of a 152K vocabulary need 80 GB.
LOSS_CHUNK = 4096
# Bytes of a logit at the peak of a loss over all of them: itself, its copy in fp32, its log-probability, its gradient;
# a trainer as it comes shifts them and casts the gradient besides. Compiled, runs of 2024 had 10 and those of 2025,
# which compiled the loss as well, 6 or less (docs/published.md): between them. A chunk's are in bf16, in fp32 for the
# loss, and their gradient in bf16.
WHOLE = {"tuned": 14.0, "compiled": 8.5, "plain": 18.0}
CHUNKED = BYTES_BF16 + BYTES_FP32 + BYTES_BF16
# RMSNorm that is several kernels keeps its input in fp32 as well: elements of bf16 over the hidden state, of two norms.
UNFUSED = {"tuned": 4, "compiled": 0, "plain": 6}


def kept(model: Model, tokens: int, longest: int, recipe: Recipe) -> float:
    """What all layers keep from their forward to their backward, and what one layer more keeps while it runs again."""
    saved = model.layers * model.hidden
    everything = model.layers * _whole(model, recipe)
    elements = {
        "none": everything,
        "layers": (saved + everything) / 2,
        "operators": saved + model.layers * _products(model),
        "full": saved,
    }[recipe.recompute]
    scores = model.layers * _scores(model, longest, recipe) if recipe.recompute in ("none", "layers") else 0.0
    return float(BYTES_BF16 * tokens) * (elements + scores)


def working(model: Model, tokens: int, longest: int, recipe: Recipe) -> float:
    """Of the layer whose backward runs: all that it computed again, and the gradients of its MLP and its output."""
    again = _whole(model, recipe) - model.hidden if recipe.recomputes else 0.0
    scores = 2 * _scores(model, longest, recipe) if recipe.recomputes else _scores(model, longest, recipe)
    return float(BYTES_BF16 * tokens) * (again + model.hidden + 3 * _mlp(model) + scores)


def logits(model: Model, tokens: int, recipe: Recipe) -> float:
    if recipe.kernels.loss == "whole":
        return float(tokens) * model.vocab * WHOLE[recipe.kernels.stack]
    return float(min(tokens, LOSS_CHUNK)) * model.vocab * CHUNKED


def _mlp(model: Model) -> float:
    return max(model.experts_active * model.ffn + model.shared_ffn if model.experts else model.ffn, model.dense_ffn)


def _heads(model: Model) -> float:
    """Queries, keys, values and attention's output."""
    return 2 * (model.heads + model.kv_heads) * model.head_dim


def _whole(model: Model, recipe: Recipe) -> float:
    """Everything of one layer that its backward reads."""
    norms = 0 if model.plain_mlp else UNFUSED[recipe.kernels.stack]
    hidden = (
        4 + norms + 2 * model.experts_active
    ) * model.hidden  # with experts also a token's copies to them and back
    inner = 2 if model.plain_mlp else 3 if recipe.kernels.stack == "compiled" else 4
    return hidden + _heads(model) + inner * _mlp(model)


def _products(model: Model) -> float:
    """What recompute by operator keeps: attention's output, and every second matmul's, counted from the first."""
    queries, shared = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return queries + (queries + shared + _mlp(model) + model.hidden)


def _scores(model: Model, longest: int, recipe: Recipe) -> float:
    """Elements per token of attention's matrices where a kernel writes them down: scores in fp32, weights in bf16."""
    return 3.0 * model.heads * longest if recipe.kernels.attention == "eager" else 0.0
