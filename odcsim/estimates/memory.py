"""A first estimate of one device's memory under FSDP, good for "does it fit at all", not for the last gigabyte.

It adds terms that do not all peak together (the logits are gone when the first layer runs backward), so it errs high.

Assumed: AdamW on fp32 master shards, bf16 compute and gathers, fp32 gradient reduction, recompute per layer or
none, flash attention (no matrix of scores), fused norms, a chunked loss, units resharded after their forward. Left
out: the GPU context (about 1 GB), fragmentation, data loading, the optimizer step's temporaries.
"""

from dataclasses import dataclass, fields

from odcsim.model import BYTES_BF16, BYTES_FP32, Model
from odcsim.program import sync_named
from odcsim.recipe import USUAL, Recipe

# AdamW keeps two moments beside the master weights, all fp32 (ZeRO, arXiv 1910.02054, section 3.1, counts K = 12).
STATE_BYTES = 12

# FSDP2 prefetches: while one layer computes, the next is there and a third is on its way.
LAYERS_GATHERED = 3

# Reductions under way at once: FSDP2's backward waits for the one before the last.
REDUCTIONS_IN_FLIGHT = 2

# The loss is taken over this many tokens at a time; all at once, 64K tokens of a 152K vocabulary need 80 GB.
LOSS_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device at the peak of a minibatch, by what they are for."""

    states: float  # master weights and optimizer moments
    gradients: float
    unsharded: float  # weights gathered for compute
    activations: float
    logits: float
    buffers: float  # of the communication
    in_node: float = 0.0  # what hybrid sharding keeps beside the shards: a node's parameters, and sums of its gradients

    @property
    def total(self) -> float:
        return float(sum(getattr(self, term.name) for term in fields(self)))


def estimate(
    model: Model,
    devices: int,
    tokens: int,
    recipe: Recipe = USUAL,
    holders: int = 0,
) -> Memory:
    """Memory of a device whose largest microbatch holds `tokens` tokens.

    `holders`: devices of a node that together hold all parameters and gradients (hybrid sharding); 0: all devices do.
    """
    return Memory(
        states=STATE_BYTES * model.parameters / devices,
        gradients=_gradients(model, devices, full=not sync_named(recipe.sync).push_every_microbatch),
        unsharded=BYTES_BF16 * float(LAYERS_GATHERED * model.layer_parameters + model.root_parameters),
        activations=_activations(model, tokens, recipe.recompute),
        logits=_logits(model, tokens),
        buffers=_buffers(model, devices, not sync_named(recipe.sync).meets),
        in_node=in_node(model, devices, recipe, holders or devices),
    )


def in_node(model: Model, devices: int, recipe: Recipe, holders: int) -> float:
    """What a device holds more where `holders` of a node have all parameters and gradients, and not all devices.

    One-sided syncs have published parameters and accumulators in any case. Collectives gather from the optimizer's
    shards, so the parameters come anew; their sums take the place of the gradients' shard.
    """
    if holders == devices:
        return 0.0
    more = model.parameters / holders - model.parameters / devices
    weights = BYTES_BF16 * (model.parameters / holders if sync_named(recipe.sync).meets else more)
    return weights + BYTES_FP32 * more


def _gradients(model: Model, devices: int, full: bool) -> float:
    """The fp32 shard; unsharded bf16 gradients of one layer and of the root, whose head's part lives from the start of
    the backward to its end; and everything once more, unsharded in fp32, where reduction is deferred (FSDP2 accumulates
    in the dtype it reduces in)."""
    sharded = BYTES_FP32 * model.parameters / devices
    passing = BYTES_BF16 * (model.layer_parameters + model.root_parameters)
    return sharded + passing + (BYTES_FP32 * model.parameters if full else 0)


def _activations(model: Model, tokens: int, recompute: bool) -> float:
    """One saved input per layer, and the layer whose backward runs, all bf16: hidden states around its norms, queries,
    keys, values and attention output, the MLP's gate, up and product, and the gradients of these three and of the
    output. Attention's gradients come later, when the MLP's tensors are gone, and are not larger.

    Without recompute every layer keeps all of this but the gradients, and also the gate's activation, and with experts
    the copies of a token that go to them and come back."""
    mlp = model.experts_active * model.ffn + model.shared_ffn if model.experts else model.ffn
    mlp = max(mlp, model.dense_ffn)
    heads = 2 * (model.heads + model.kv_heads) * model.head_dim
    working = 5 * model.hidden + heads + 6 * mlp
    kept = (4 + 2 * model.experts_active) * model.hidden + heads + 4 * mlp
    whole = model.layers * model.hidden + working if recompute else model.layers * kept + model.hidden + 3 * mlp
    return float(BYTES_BF16 * tokens) * whole


def _logits(model: Model, tokens: int) -> float:
    """One chunk in bf16, in fp32 for the loss, and its gradient in bf16."""
    return float(min(tokens, LOSS_CHUNK)) * model.vocab * (BYTES_BF16 + BYTES_FP32 + BYTES_BF16)


def _buffers(model: Model, devices: int, one_sided: bool) -> float:
    """What the transfers need: a flat gathered layer in bf16 before it is split into parameters, and fp32 gradients on
    their way (two layers, or the root if that is larger). One-sided syncs add the published bf16 shard and the fp32
    accumulator, counted beside the gradient shard although an implementation may let the two share memory."""
    landing = BYTES_BF16 * max(model.layer_parameters, model.root_parameters)
    leaving = BYTES_FP32 * max(REDUCTIONS_IN_FLIGHT * model.layer_parameters, model.root_parameters)
    arena = (BYTES_BF16 + BYTES_FP32) * model.parameters / devices
    return float(landing + leaving) + (arena if one_sided else 0.0)
