"""One device's memory under FSDP, term by term, at the moment of a minibatch at which it is fullest.

What is there all the time: states, gradients' shards, what on-demand lays out for peers, weights gathered for compute,
and what layers keep. On top of it the fuller of two moments: the loss, with its logits; or a layer's backward, with
what it computes again, gradients on their way out, and those of the head. Beside it what an allocator loses between
sizes, and the GPU's context, which no allocator shows.

Assumed: AdamW on fp32 master shards, bf16 compute and gathers, fp32 gradient reduction, units resharded after their
forward. Left out: data loading, the optimizer step's temporaries.
"""

from dataclasses import dataclass, fields

from odcsim.catalog.estimates import activations
from odcsim.catalog.estimates.compute import adapter_parameters
from odcsim.model import BYTES_BF16, BYTES_FP32, Model
from odcsim.program import sync_named
from odcsim.recipe import USUAL, Recipe

# AdamW keeps two moments beside the master weights (ZeRO, arXiv 1910.02054, section 3.1): bytes of both.
MOMENTS = {"fp32": 8, "bf16": 4, "8bit": 2, "pure": 4}

# FSDP2 prefetches: while one layer computes, the next is there and a third is on its way.
LAYERS_GATHERED = 3

# Reductions under way at once: FSDP2's backward waits for the one before the last.
REDUCTIONS_IN_FLIGHT = 2

# Of what comes and goes, what is lost between sizes: reserved beside allocated memory of runs that told both.
SLACK = 0.06

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


def estimate(
    model: Model,
    devices: int,
    tokens: int,
    recipe: Recipe = USUAL,
    holders: int = 0,
    longest: int = 0,
) -> Memory:
    """Memory of a device whose largest microbatch holds `tokens` tokens.

    `holders`: devices of a node that together hold all parameters and gradients (hybrid sharding); 0: all devices do.
    `longest`: of its samples; 0: all of it is one.
    """
    sync, spread = sync_named(recipe.sync), _holders_of_states(devices, holders, recipe)
    share, trained = model.parameters / spread, _trained(model, recipe)
    lasting = {
        "weights": share * (_kept_in(recipe) * trained + BYTES_BF16 * (1 - trained)),
        "moments": share * trained * MOMENTS[recipe.optimizer],
        "arena": 0.0 if sync.meets else (BYTES_BF16 + BYTES_FP32 * trained) * model.parameters / devices,
        "in_node": _in_node(model, devices, recipe, holders or devices),
    }
    if recipe.offload:
        lasting |= {"weights": 0.0, "moments": 0.0}
    passing = _moments(model, spread, tokens, longest or tokens, recipe, trained)
    slack = SLACK * sum(passing.values())
    return Memory(**lasting, **passing, slack=slack, context=CONTEXT)


def over_full(model: Model, devices: int, recipe: Recipe, holders: int) -> float:
    """Bytes that hybrid sharding needs more than full sharding, whatever the tokens."""
    return estimate(model, devices, 1, recipe, holders).total - estimate(model, devices, 1, recipe).total


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


def _kept_in(recipe: Recipe) -> int:
    """Bytes of a master weight, and of a gradient of one."""
    return BYTES_BF16 if recipe.optimizer == "pure" else BYTES_FP32


def _trained(model: Model, recipe: Recipe) -> float:
    """Trained parameters over all of the model's."""
    return adapter_parameters(model, recipe.lora) * model.layers / model.parameters if recipe.lora else 1.0


def _moments(model: Model, spread: int, tokens: int, longest: int, recipe: Recipe, trained: float) -> dict[str, float]:
    """What comes and goes, at the fuller of two moments: the loss, or the backward of a layer."""
    layer, root = model.layer_parameters, model.root_parameters
    kept = activations.kept(model, tokens, longest, recipe)
    unsharded = BYTES_BF16 * float((LAYERS_GATHERED if recipe.reshard else model.layers) * layer + root)
    landing = BYTES_BF16 * float(max(layer, root))
    shards = _shards(model, spread, recipe, trained)
    loss = {"activations": kept, "logits": activations.logits(model, tokens, recipe), "buffers": landing}
    # With adapters no weight has a gradient: a layer's adapters pass, and nothing of the root.
    going, head = (adapter_parameters(model, recipe.lora), 0.0) if recipe.lora else (float(layer), float(root))
    backward = {
        "activations": kept + activations.working(model, tokens, longest, recipe),
        "logits": 0.0,
        "buffers": landing + BYTES_FP32 * max(REDUCTIONS_IN_FLIGHT * going, head),
        "gradients": BYTES_BF16 * (going + head),
    }
    fuller = max((loss, backward), key=lambda moment: sum(moment.values()))
    return fuller | {"unsharded": unsharded, "gradients": shards + fuller.get("gradients", 0.0)}


def _shards(model: Model, spread: int, recipe: Recipe, trained: float) -> float:
    """Of gradients in fp32; on-demand has them in its arena. And everything once more, unsharded, where reduction is
    deferred: FSDP2 accumulates in the dtype that it reduces in."""
    sync = sync_named(recipe.sync)
    every = _kept_in(recipe) * trained * model.parameters
    shard = every / spread if sync.meets else 0.0
    return shard + (0.0 if sync.push_every_microbatch else every)
