"""What is known of a trainer that others wrote, and the row that its settings are to say."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from odcsim.balance.balancer import Deal, Work
from odcsim.errors import InputError
from odcsim.neighbours.packing import Rows
from odcsim.program import Sync, sync_named
from odcsim.recipe import CHOICES, Recipe

ENGINE = "on-demand"  # what odc_engine brings, and no trainer runs by itself
COLLECTIVE = ("collective",)
# accelerate's no_sync: gradients leave after the last microbatch; with sync_each_batch they leave after each.
LAST = ("deferred", "collective")
EACH_BATCH = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}  # of an accelerator_config
PLAIN = {"stack": "plain", "loss": "whole"}  # layers and loss as transformers has them, without fused kernels
# The last step of an epoch, which has fewer samples; or an epoch goes on in the next one.
KEPT, DROPPED, GOING_ON = "kept", "dropped", "going on"
# FSDP2 as it is priced: sharded by layers, which are whole for as long as they compute.
LAUNCHED = (
    "accelerate launch --num_processes {devices} --num_machines {machines} --use_fsdp --fsdp_version 2 "
    "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_reshard_after_forward true"
)
# FSDP2 on a mesh of nodes and their devices (accelerate 1.15.0: ParallelismConfig.fsdp_dim_names).
IN_NODES = (
    " --use_parallelism_config --parallelism_config_dp_replicate_size {nodes} "
    "--parallelism_config_dp_shard_size {per_node}"
)
# GPUs that share each sequence: keys and values are gathered, which is usual (1.15.0: TorchContextParallelConfig), and
# what is sharded is over all of them (ParallelismConfig.fsdp_dim_names).
IN_GROUPS = " --parallelism_config_cp_size {context}"
# Balancers of those who do not balance.
IN_BATCHES, IN_PADDED, IN_ROWS, IN_FULL_ROWS = "batches", "padded", "packed", "filled"
GITHUB = "https://github.com"
OPTIMIZERS = {"8bit": "adamw_torch_8bit"}  # of transformers; that of bitsandbytes does not take FSDP2's tensors
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChosenRow:
    """How a step is to be run. `microbatches` of a device and step, on average."""

    recipe: Recipe
    balancer: str
    devices: int
    per_node: int
    minibatch: int  # samples of a device and step
    max_tokens: int
    microbatches: float
    rollouts: int = 1  # samples of a prompt
    each: int = 0  # samples of a microbatch, where they are counted
    longest: int = 0  # tokens of a sample; 0: nobody said
    model: str = ""  # as it was asked for
    epochs: float | None = None
    pairs: bool = False  # of what was chosen and rejected
    data: str = ""
    samples_made: float = 0.0  # of a step, where a trainer makes it by itself
    tokens_made: float = 0.0
    group_by_length: bool = False

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.per_node)

    @property
    def hybrid(self) -> bool:
        """Whether each of several nodes has all parameters."""
        return self.recipe.on(self.nodes).sharding == "hybrid"

    @property
    def workers(self) -> int:
        """Who each run microbatches of their own."""
        return self.recipe.workers(self.devices)

    @property
    def samples(self) -> int:
        """Of a step, on all devices."""
        return self.workers * self.minibatch

    @property
    def prompts(self) -> int:
        """Of a step, where each stands for several samples."""
        if self.samples % self.rollouts:
            fix = f"give a divisor of {self.samples}"
            raise InputError(f"--rollouts {self.rollouts} does not divide {self.samples} samples of a step", fix=fix)
        return self.samples // self.rollouts

    @property
    def accumulation(self) -> int:
        """Microbatches of a device and step."""
        if self.each:
            return self.minibatch // self.each
        if self.balancer in (IN_ROWS, IN_FULL_ROWS):  # samples are packed before training: `minibatch` counts rows
            return self.minibatch
        return max(1, round(self.microbatches))

    @property
    def sync(self) -> Sync:
        return sync_named(self.recipe.sync)

    @property
    def meets_each(self) -> bool:
        """Whether devices meet for the gradients of each of several microbatches."""
        return self.sync.meets and self.sync.push_every_microbatch and self.accumulation > 1

    def model_and_epochs(self, model: str, epochs: str = "") -> Settings:
        """The model, where it is a name or folder that can be loaded, and epochs, where somebody asked for some."""
        known: Settings = {model: self.model} if "/" in self.model and not self.model.endswith(".json") else {}
        return known | ({epochs: f"{self.epochs:g}"} if epochs and self.epochs else {})

    def optimizer(self, name: str) -> Settings:
        """What transformers calls it, where another than its usual one is meant."""
        known = OPTIMIZERS.get(self.recipe.optimizer)
        return {name: known} if known else {}


@dataclass(frozen=True, slots=True)
class Rule:
    """A way in which a trainer makes a step's microbatches: by which balancer, and of which rows, if it packs some."""

    balancer: str
    says: str
    rows: Callable[[Sequence[int], int], Rows] | None = None
    group: int = 0  # samples that are packed at once; 0: all


@dataclass(frozen=True, slots=True)
class Neighbour:
    """How its settings are called and written (`form`: shell, hydra or yaml), where that was read, and how it deals."""

    name: str
    form: str
    source: str
    settings: Callable[[ChosenRow], Settings]
    syncs: tuple[str, ...]  # that it runs by itself
    rule: str  # by which it deals samples to devices and microbatches
    knows: frozenset[str] = frozenset()  # what of a recipe its settings say, beside recompute of whole layers
    engine: str = ""  # the page on running it on demand by odc_engine
    caution: str = ""
    deal: Callable[[Work], Deal] | None = None  # its rule, as a rival to our balancers
    help: str = ""  # a line on that rival
    rules: tuple[Rule, ...] = ()  # between which its settings choose; none: `rule` alone
    assumes: Mapping[str, str] = field(default_factory=dict)  # its kernels, where nobody chooses others
    ending: str = DROPPED  # what becomes of an epoch's last step
    rollouts: bool = False  # whether it trains on what it generates, several samples of a prompt
    launcher: str = ""  # under which it runs as it was priced, where its own settings do not say that

    def launch(self, row: ChosenRow) -> str:
        """The command under which it runs the row."""
        each, nodes, per_node = row.recipe.context, 1, row.devices
        words = self.launcher + (IN_NODES if row.hybrid or each > 1 else "") + (IN_GROUPS if each > 1 else "")
        if row.hybrid:
            nodes, per_node = row.nodes, row.per_node
        return words.format(
            devices=row.devices, machines=row.nodes, nodes=nodes, per_node=per_node // each, context=each
        )

    @property
    def own(self) -> tuple[Rule, ...]:
        """By which it deals, by itself."""
        return self.rules or (Rule(self.name, self.rule),)


def unusual(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Choices that not every trainer's settings say: as `knows` has each, as a command line does, and in words, which
    a row has of those that some trainer knows."""
    if recipe.sharding == "hybrid":
        yield "hybrid", "--sharding hybrid", "sharding inside each node alone"
    if recipe.offload:
        yield "on_host", "--offload", "states of the optimizer on the host"
    if recipe.context > 1:
        each = f"sequences shared by {recipe.context} GPUs"
        yield "context", f"--context {recipe.context}", each
    if recipe.lora:
        yield "rank", f"--lora {recipe.lora}", f"adapters of rank {recipe.lora}"
    if recipe.quantized:
        yield "quantized", f"--quantization {recipe.quantization}", f"frozen weights in {recipe.quantization}"
    if recipe.optimizer != "fp32":
        yield "moments", f"--optimizer {recipe.optimizer}", f"moments in {recipe.optimizer}"
    if recipe.recompute in ("operators", "layers"):
        words = CHOICES["recompute"].phrase(recipe.recompute).removeprefix("with ")
        yield recipe.recompute, f"--recompute {recipe.recompute}", words
    if not recipe.reshard:
        yield "reshard", "--no-reshard", ""
    for name in ("precision", "reduce", "streams"):
        if name in recipe.unusual:
            yield name, f"--{name} {recipe.value(name)}", ""


def lacking(trainer: Neighbour, recipe: Recipe) -> list[str]:
    """Choices of a recipe that the trainer's settings do not say, as a command line has them."""
    return [flag for name, flag, _ in unusual(recipe) if name not in trainer.knows]
