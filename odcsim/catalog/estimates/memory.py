"""One device's memory under FSDP, term by term, at the moment of a minibatch at which it is fullest.

What is there all the time: states, and what on-demand lays out for peers. On top of it the fullest of five moments: the
loss, with its logits; the backward of the last layer, when all activations are still kept; that of the first, when all
gradients are there; the reduction of what is in no layer; the optimizer's step. Beside it what an allocator loses
between sizes, and the GPU's context, which no allocator shows.

Of activations, elements of bf16 are counted for each token, averaged over layers: hidden states around the norms,
queries, keys, values and attention's output, the MLP's gate, up, its activation and product.

As the recipe says; compute and gathers in bf16. Left out: data loading.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from odcsim.catalog.estimates.compute import adapter_parameters, trained_share
from odcsim.catalog.estimates.work import OPTIMIZERS, SCORES, STACKS, matmuls
from odcsim.model import BYTES_BF16, BYTES_FP32, Model
from odcsim.program import WHOLE, sync_named
from odcsim.recipe import USUAL, Recipe

# FSDP2 prefetches: while one layer computes, the next is there. A third's bytes are on their way, and of the gradients
# of one: before it reduces another unit, FSDP2's backward waits for the last.
LAYERS_GATHERED = 2

# Of what comes and goes, what an allocator holds beside it: blocks that one stream or one size freed, and that another
# cannot take. The least of runs of FSDP that told both (docs/model/memory.md).
SLACK = 0.2

# What a driver, its libraries' kernels and a communicator's buffers take before anything is allocated.
CONTEXT = 1.5e9

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


def _term(words: str) -> Any:
    return field(default=0.0, metadata={"words": words})


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device at the peak of a minibatch, by what they are for, each with the words that people read."""

    weights: float = _term("weights")  # master shards; frozen ones in bf16
    moments: float = _term("AdamW moments")
    gradients: float = _term("gradients")  # shards of them, and those that are not reduced yet
    unsharded: float = _term("gathered parameters")
    activations: float = _term("activations")
    logits: float = _term("logits")
    buffers: float = _term("communication buffers")
    arena: float = _term("buffers that peers read and write")  # weights in bf16 to gather, sums of gradients to push to
    in_node: float = _term("a node's copies (hybrid)")  # its parameters and sums of gradients, beside the shards
    step: float = _term("optimizer step")  # what it holds beside its states
    slack: float = _term("allocator fragmentation")  # lost between sizes
    context: float = _term("GPU context")  # which no allocator shows

    @property
    def terms(self) -> dict[str, float]:
        return {term.name: float(getattr(self, term.name)) for term in fields(self)}

    @property
    def total(self) -> float:
        return sum(self.terms.values())

    @property
    def allocated(self) -> float:
        """What an allocator reports as reserved."""
        return self.total - self.context

    @property
    def tensors(self) -> float:
        """What it reports as allocated."""
        return self.allocated - self.slack


IN_WORDS: dict[str, str] = {term.name: term.metadata["words"] for term in fields(Memory)}


class Activations(NamedTuple):
    """Bytes of one microbatch's."""

    stored: float  # what all layers keep from their forward to their backward
    inputs: float  # gradients of all layers' inputs, where they are kept until all of backward is over
    layer: float  # of the layer whose backward runs


def estimate(
    model: Model,
    devices: int,
    tokens: int,
    recipe: Recipe = USUAL,
    holders: int = 0,
    longest: int = 0,
    microbatches: int = 0,
) -> Memory:
    """Memory of a device whose largest microbatch holds `tokens` tokens, or its part of one that several share.

    `holders`: devices of a node that together hold all parameters and gradients (hybrid sharding); 0: all devices do.
    `longest`: of its samples; 0: all of it is one.
    `microbatches`: of a minibatch; 0: several. One alone finds no gradients of any before it.
    """
    states = _states(model, devices, recipe, holders)
    every, tokens, longest = tokens, -(-tokens // recipe.context), longest or tokens
    own = activations(model, tokens, longest, devices, recipe)
    # Where several share a microbatch: keys and values of all of it, and the part of their gradients that comes in.
    keys = (BYTES_BF16 * every + BYTES_FP32 * tokens) * model.keys_and_values * float(recipe.context > 1)
    layer, root = float(model.layer_parameters), float(model.root_parameters)
    # With adapters no weight has a gradient: a layer's adapters pass, and nothing of the root.
    going, head = (adapter_parameters(model, recipe.lora), 0.0) if recipe.lora else (layer, root)
    others = float(devices > 1)  # one device sends nothing
    carried = recipe.quantized or BYTES_BF16  # of a layer's weight on its way

    # DDP sends gradients from buckets of its own, beside the gradients.
    buckets = others * states.gradients * (recipe.sharding == WHOLE)

    def gathered(layers: int) -> float:
        """Bytes of what is in no layer and of so many layers. In few bits nobody copies what is there already, and one
        matmul's weight at a time is in bf16."""
        if recipe.sharding == WHOLE:  # as autocast has them: what is kept in fp32, cast for a whole pass
            return BYTES_BF16 * model.parameters * trained_share(model, recipe.lora) * (recipe.optimizer != "pure")
        if not recipe.quantized:
            return BYTES_BF16 * (root + layers * layer)
        one = BYTES_BF16 * max(m.inner * m.outer for m in matmuls(model))
        return others * (BYTES_BF16 * root + carried * layers * layer) + one

    loss = Memory(
        activations=own.stored + BYTES_BF16 * tokens * 2.0 * model.hidden,  # the last layer's output, the head's input
        logits=logits(model, tokens, recipe),
        unsharded=gathered(1 if recipe.reshard else model.layers),
        gradients=BYTES_BF16 * (0.0 if recipe.kernels.loss == "whole" else head),
        buffers=buckets,
    )
    last = Memory(  # layer's backward
        activations=own.stored + own.layer,
        unsharded=gathered(LAYERS_GATHERED if recipe.reshard else model.layers),
        gradients=BYTES_BF16 * (going + head),
        buffers=(buckets or others * (carried * layer + recipe.sent * going)) + keys,
    )
    stored = own.stored + own.inputs if own.inputs else own.stored / model.layers
    first = replace(last, activations=own.layer + stored)
    reduction = Memory(  # of what is in no layer
        unsharded=BYTES_BF16 * root, gradients=BYTES_BF16 * head, buffers=buckets or others * recipe.sent * head
    )
    step = Memory(step=states.step, buffers=buckets)
    # A first microbatch has the loss and the last layer's backward before there are any shards of gradients.
    early = 0.0 if microbatches == 1 else states.gradients
    later = states.gradients
    full = [
        replace(
            m,
            weights=states.weights,
            moments=states.moments,
            gradients=m.gradients + shards,
            arena=states.arena,
            in_node=states.in_node,
            slack=SLACK * sum((m.activations, m.logits, m.unsharded, m.gradients, m.buffers, m.step)),
            context=CONTEXT,
        )
        for m, shards in ((loss, early), (last, early), (first, later), (reduction, later), (step, later))
    ]
    return max(full, key=lambda m: sum((m.gradients, m.unsharded, m.activations, m.logits, m.buffers, m.step, m.slack)))


def over_full(model: Model, devices: int, recipe: Recipe, holders: int) -> float:
    """Bytes that another sharding needs more than full sharding, whatever the tokens."""
    asked, full = _states(model, devices, recipe, holders), _states(model, devices, recipe.by(sharding="full"), 0)
    more, less = (sum((m.weights, m.moments, m.arena, m.in_node, m.gradients)) for m in (asked, full))
    return more - less


def _states(model: Model, devices: int, recipe: Recipe, holders: int) -> Memory:
    """What is there all the time, shards of gradients among it; and what the optimizer's step needs beside that."""
    sync, optimizer, trained = sync_named(recipe.sync), OPTIMIZERS[recipe.optimizer], trained_share(model, recipe.lora)
    # Every node has all states, and shards of gradients, where it gets all sums; else all devices together do.
    by_node = holders and (recipe.exchange == "layers" or recipe.sharding == WHOLE)
    owners = holders if by_node else devices
    share, here = model.parameters / owners, not recipe.offload
    # Libraries of adapters load a frozen weight in bf16, and FSDP1 leaves it so; a compiled stack is FSDP2's, which
    # gathers in bf16 what lies in fp32, frozen or not (github.com/huggingface/accelerate/issues/3844).
    frozen: float = optimizer.master if STACKS[recipe.kernels.stack].compiled else BYTES_BF16
    moved: float = BYTES_BF16  # of a weight that on-demand and hybrid sharding lay out
    if recipe.quantized:  # of layers; what is in none stays in bf16
        layers = model.layers * model.layer_parameters
        frozen = moved = (recipe.quantized * layers + BYTES_BF16 * model.root_parameters) / model.parameters
    # Gradients are in fp32; on-demand has them in its arena. And everything once more, unsharded, where reduction is
    # deferred: FSDP2 accumulates in the dtype that it reduces in.
    every = optimizer.master * trained * model.parameters
    shards = every / owners if sync.meets else 0.0
    in_node = 0.0
    if holders and holders != devices and not by_node:
        # One-sided syncs have published parameters and sums in any case. Collectives gather from the optimizer's
        # shards, so the parameters come anew; their sums take the place of the gradients' shard. Where nodes exchange
        # layer by layer, the states themselves are whole in every node, and nothing comes on top.
        more = model.parameters / holders - model.parameters / devices
        in_node = moved * (model.parameters / holders if sync.meets else more) + BYTES_FP32 * more
    return Memory(
        weights=here * share * (optimizer.master * trained + frozen * (1 - trained)),
        moments=here * share * trained * optimizer.moments,
        gradients=shards + (0.0 if sync.push_every_microbatch or recipe.sharding == WHOLE else every),
        arena=0.0 if sync.meets else (moved + BYTES_FP32 * trained) * model.parameters / devices,
        in_node=in_node,
        step=here * share * trained * optimizer.roots,
    )


def activations(model: Model, tokens: int, longest: int, devices: int, recipe: Recipe) -> Activations:
    """Of a microbatch whose longest sample has `longest` tokens. What an allocator loses between them is not in it."""
    stack, recompute, hidden, layers = STACKS[recipe.kernels.stack], recipe.recompute, model.hidden, model.layers
    queries, shared = model.heads * model.head_dim, model.kv_heads * model.head_dim
    width = model.experts_active * model.ffn + model.shared_ffn if model.experts else model.ffn
    mlp = max(width, model.dense_ffn)
    visits = float(model.experts_active * hidden)  # a token's hidden state, once for each expert that it visits
    scores = SCORES.get(recipe.kernels.attention, 0.0) * model.heads * longest  # where a kernel writes them down
    # Of one layer what its backward reads outside the MLP (queries, keys, values and attention's output among it), and
    # what the MLP's backward reads.
    around = (4 + (0 if model.plain_mlp else stack.unfused)) * hidden + 2 * (queries + shared)
    within = (2 if model.plain_mlp else 3 if stack.compiled else 4) * mlp + TO_EXPERTS * visits
    inputs = layers * hidden * (1 + model.streams)
    stored: float = inputs
    if recompute == "none":
        stored = layers * (around + within) + layers * scores
    elif recompute == "layers":
        stored = (inputs + layers * (around + within)) / 2 + layers * scores
    elif recompute == "operators":
        # Attention's output, and every second matmul's, counted from the first. The last one's is what comes out of the
        # layer, which no backward reads: a compiler leaves it out.
        products = queries + (queries + shared + mlp + (0 if stack.compiled else hidden))
        stored = inputs + layers * products
    # FSDP1's hooks for frozen weights keep the gradient of each layer's input, and the input with it, until all of
    # backward is over, where PyTorch's reentrant checkpoint runs layers again.
    waits = devices > 1 and recipe.lora and recompute == "full" and not stack.compiled
    # What the MLP has of its own and of gradients where it is most: in its backward; with experts mostly before it,
    # where what came out of them was weighed. Without recompute its own is kept, and counted there.
    backward = (AT_ONCE_PLAIN if model.plain_mlp else AT_ONCE) * mlp + TO_EXPERTS * visits
    most = max(within + FROM_EXPERTS * visits, backward)
    # All that the layer computed again, and the gradients of its MLP, its output and its input.
    if recipe.recomputes:
        layer = around - hidden + 2 * hidden + most + 2 * scores
    else:
        layer = 2 * hidden + (most - within) + scores
    each = float(BYTES_BF16 * tokens)
    return Activations(each * stored, each * inputs if waits else 0.0, each * layer)


def logits(model: Model, tokens: int, recipe: Recipe) -> float:
    """Bytes of them, and of what the loss makes of them, where they are most."""
    if recipe.kernels.loss == "whole":
        return float(tokens) * model.vocab * STACKS[recipe.kernels.stack].logit
    if recipe.kernels.loss == "policy":
        return float(tokens) * min(model.vocab, WORDS) * POLICY
    # Tokens whose loss is taken at a time, as Liger Kernel's fused cross-entropy takes it: a power of two, so that
    # their logits are about as many as the hidden states of all tokens.
    each = -(-tokens // -(-model.vocab // model.hidden))
    chunk = min(tokens, 1 << max(0, each - 1).bit_length())
    return float(chunk) * model.vocab * CHUNKED
