"""One device's memory under FSDP, term by term, at the moment of a minibatch at which it is fullest.

What is there all the time: states, and what on-demand lays out for peers. On top of it the fullest of five moments: the
loss, with its logits; the backward of the last layer, when all activations are still kept; that of the first, when all
gradients are there; the reduction of what is in no layer; the optimizer's step. Beside it what an allocator loses
between sizes, and the GPU's context, which no allocator shows.

As the recipe says; compute and gathers in bf16. Left out: data loading.
"""

from dataclasses import dataclass, fields

from odcsim.catalog.estimates import activations
from odcsim.catalog.estimates.compute import adapter_parameters, trained_share
from odcsim.catalog.estimates.work import OPTIMIZERS, STACKS
from odcsim.model import BYTES_BF16, BYTES_FP32, Model
from odcsim.program import sync_named
from odcsim.recipe import USUAL, Recipe

# FSDP2 prefetches: while one layer computes, the next is there. A third's bytes are on their way, and of the gradients
# of one: before it reduces another unit, FSDP2's backward waits for the last.
LAYERS_GATHERED = 2

# Of what comes and goes, what an allocator holds beside it: blocks that one stream or one size freed, and that another
# cannot take. The least of runs of FSDP that told both (docs/model/memory.md).
SLACK = 0.2

# What a driver, its libraries' kernels and a communicator's buffers take before anything is allocated.
CONTEXT = 1.5e9


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device at the peak of a minibatch, by what they are for."""

    weights: float  # master shards; frozen ones in bf16
    moments: float  # of the optimizer
    gradients: float  # shards of them, and those that are not reduced yet
    unsharded: float  # weights gathered for compute
    activations: float
    logits: float
    buffers: float  # of the communication
    arena: float = 0.0  # what on-demand lays out for peers: weights in bf16 to gather, sums of gradients to push to
    in_node: float = 0.0  # what hybrid sharding keeps beside the shards: a node's parameters, and sums of its gradients
    step: float = 0.0  # what the optimizer's step holds beside its states
    slack: float = 0.0  # what an allocator loses between sizes
    context: float = 0.0  # the GPU's, which no allocator shows

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


def estimate(
    model: Model,
    devices: int,
    tokens: int,
    recipe: Recipe = USUAL,
    holders: int = 0,
    longest: int = 0,
    microbatches: int = 0,
) -> Memory:
    """Memory of a device whose largest microbatch holds `tokens` tokens.

    `holders`: devices of a node that together hold all parameters and gradients (hybrid sharding); 0: all devices do.
    `longest`: of its samples; 0: all of it is one.
    `microbatches`: of a minibatch; 0: several. One alone finds no gradients of any before it.
    """
    lasting, trained = _lasting(model, devices, recipe, holders), trained_share(model, recipe.lora)
    share = model.parameters / _holders_of_states(devices, holders, recipe)
    roots = 0.0 if recipe.offload else share * trained * OPTIMIZERS[recipe.optimizer].roots
    before, later = _moments(model, devices, tokens, longest or tokens, recipe)
    shards = _shards(model, devices, recipe, holders)
    found = [_full(moment, 0.0 if microbatches == 1 else shards) for moment in before]
    found += [_full(moment, shards) for moment in (*later, {"step": roots})]
    return Memory(**lasting, **max(found, key=lambda moment: sum(moment.values())), context=CONTEXT)


def over_full(model: Model, devices: int, recipe: Recipe, holders: int) -> float:
    """Bytes that hybrid sharding needs more than full sharding, whatever the tokens."""
    hybrid, full = (
        _lasting(model, devices, recipe, of) | {"": _shards(model, devices, recipe, of)} for of in (holders, 0)
    )
    return sum(hybrid.values()) - sum(full.values())


def _lasting(model: Model, devices: int, recipe: Recipe, holders: int) -> dict[str, float]:
    """What is there all the time, beside shards of gradients."""
    share, trained = model.parameters / _holders_of_states(devices, holders, recipe), trained_share(model, recipe.lora)
    sync, here, optimizer = sync_named(recipe.sync), not recipe.offload, OPTIMIZERS[recipe.optimizer]
    return {
        "weights": here * share * (optimizer.master * trained + _frozen_in(recipe) * (1 - trained)),
        "moments": here * share * trained * optimizer.moments,
        "arena": 0.0 if sync.meets else (BYTES_BF16 + BYTES_FP32 * trained) * model.parameters / devices,
        "in_node": _in_node(model, devices, recipe, holders or devices),
    }


def _in_node(model: Model, devices: int, recipe: Recipe, holders: int) -> float:
    """What a device holds more where `holders` of a node have all parameters and gradients, and not all devices.

    One-sided syncs have published parameters and sums in any case. Collectives gather from the optimizer's shards, so
    the parameters come anew; their sums take the place of the gradients' shard. Where nodes exchange layer by layer,
    the states themselves are whole in every node, and nothing comes on top.
    """
    if holders == devices or recipe.exchange == "layers":
        return 0.0
    more = model.parameters / holders - model.parameters / devices
    weights = BYTES_BF16 * (model.parameters / holders if sync_named(recipe.sync).meets else more)
    return weights + BYTES_FP32 * more


def _holders_of_states(devices: int, holders: int, recipe: Recipe) -> int:
    """Every node has all states, and shards of gradients, where it gets all sums; else all devices together do."""
    return holders if holders and recipe.exchange == "layers" else devices


def _frozen_in(recipe: Recipe) -> int:
    """Bytes of a frozen weight. Libraries of adapters load it in bf16, and FSDP1 leaves it so; a compiled stack is
    FSDP2's, which gathers in bf16 what lies in fp32, frozen or not (github.com/huggingface/accelerate/issues/3844)."""
    return OPTIMIZERS[recipe.optimizer].master if STACKS[recipe.kernels.stack].compiled else BYTES_BF16


Moment = dict[str, float]  # what comes and goes, by its terms


def _full(moment: Moment, shards: float) -> Moment:
    """A moment with shards of gradients, which stay, and with what an allocator loses of the rest."""
    none = dict.fromkeys(("gradients", "unsharded", "activations", "logits", "buffers"), 0.0)
    whole = none | moment
    return whole | {"gradients": whole["gradients"] + shards, "slack": SLACK * sum(moment.values())}


def _moments(
    model: Model, devices: int, tokens: int, longest: int, recipe: Recipe
) -> tuple[tuple[Moment, Moment], tuple[Moment, Moment]]:
    """Beside gradients' shards: the loss and the last layer's backward, which a first microbatch has before there are
    any; the first layer's, and the reduction of what is in no layer."""
    layer, root = float(model.layer_parameters), float(model.root_parameters)
    # With adapters no weight has a gradient: a layer's adapters pass, and nothing of the root.
    going, head = (adapter_parameters(model, recipe.lora), 0.0) if recipe.lora else (layer, root)
    others = float(devices > 1)  # one device sends nothing
    whole = model.layers * layer
    kept = activations.kept(model, tokens, longest, recipe)
    working = activations.working(model, tokens, longest, recipe)
    held = activations.held(model, tokens, devices, recipe)
    loss = {
        "activations": kept + BYTES_BF16 * tokens * 2.0 * model.hidden,  # the last layer's output, and the head's input
        "logits": activations.logits(model, tokens, recipe),
        "unsharded": BYTES_BF16 * (root + (layer if recipe.reshard else whole)),
        "gradients": BYTES_BF16 * (0.0 if recipe.kernels.loss == "whole" else head),
    }
    last = {
        "activations": kept + working,
        "unsharded": BYTES_BF16 * (root + (LAYERS_GATHERED * layer if recipe.reshard else whole)),
        "gradients": BYTES_BF16 * (going + head),
        "buffers": others * (BYTES_BF16 * layer + recipe.sent * going),
    }
    first = last | {"activations": working + (kept + held if held else kept / model.layers)}
    end = {"unsharded": BYTES_BF16 * root, "gradients": BYTES_BF16 * head, "buffers": others * recipe.sent * head}
    return (loss, last), (first, end)


def _shards(model: Model, devices: int, recipe: Recipe, holders: int) -> float:
    """Of gradients in fp32; on-demand has them in its arena. And everything once more, unsharded, where reduction is
    deferred: FSDP2 accumulates in the dtype that it reduces in."""
    sync = sync_named(recipe.sync)
    every = OPTIMIZERS[recipe.optimizer].master * trained_share(model, recipe.lora) * model.parameters
    shard = every / _holders_of_states(devices, holders, recipe) if sync.meets else 0.0
    return shard + (0.0 if sync.push_every_microbatch else every)
