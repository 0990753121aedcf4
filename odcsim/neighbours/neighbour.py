"""What is known of a trainer that others wrote: how each kind of training is started, and the row that it is to run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from odcsim.balance.balancer import Balancer
from odcsim.errors import InputError
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.packing import Rows
from odcsim.neighbours.values import Values, plain
from odcsim.program import WHOLE, Sync, sync_named
from odcsim.recipe import CHOICES, USUAL, Recipe
from odcsim.trace import DPO, SFT, Trace

ENGINE = "on-demand"  # what odc_engine brings, and no trainer runs by itself
COLLECTIVE = ("collective",)
# accelerate's no_sync: gradients leave after the last microbatch; with sync_each_batch they leave after each.
LAST = ("deferred", "collective")
EACH_BATCH = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}  # of an accelerator_config
PLAIN = {"stack": "plain", "loss": "whole"}  # layers and loss as transformers has them, without fused kernels
# What becomes of samples that are too long: they are cut, dropped, or end the run.
CUTS, DROPS, ENDS = "cuts", "drops", "ends"
# The last step of an epoch, which has fewer samples; or an epoch goes on in the next one.
KEPT, DROPPED, GOING_ON = "kept", "dropped", "going on"
# FSDP2 as it is priced: sharded by layers, which are whole for as long as they compute.
ACCELERATE_LAUNCH = "accelerate launch --num_processes {devices} --num_machines {machines}{sharding} "
WRAP = "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_reshard_after_forward {reshard}"
FSDP = f" --use_fsdp --fsdp_version 2 {WRAP}{{mesh}}"
DDP = " --multi_gpu"
TORCHRUN = "torchrun --nnodes {machines} --nproc_per_node {per_machine} "
# Not there, so that a run without data of its own ends at once.
ELSEWHERE = "/path/to/"
DATA = f"{ELSEWHERE}your-data"
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
# Kernels of attention by the names of transformers; others it has not.
ATTENTIONS = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "sdpa": "sdpa", "eager": "eager"}
KERNEL_NAMES = {name: kernel for kernel, name in ATTENTIONS.items()}
KERNEL_NAMES |= {"kernels-community/flash-attn2": "fa2", "kernels-community/flash-attn3": "fa3", "auto": "sdpa"}
KERNEL_NAMES |= {"kernels-community/flash-attn": "fa2", "kernels-community/vllm-flash-attn3": "fa3"}
KERNEL_NAMES |= {"flash": "fa2", "flex_attention": "triton", "disabled": "eager"}
USUAL_OPTIMIZER = "adamw_torch_fused"
EIGHT_BITS = ("adamw_torch_8bit", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit")
ADAMS = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_hf",
    "adamw",
    "paged_adamw_32bit",
    "adamw_apex_fused",
    "paged_adamw",
)
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChosenRow:
    """How a step is to be run. `microbatches` of a device and step, on average. Of reinforcement learning a step is one
    of `updates` on the same answers."""

    recipe: Recipe
    balancer: str
    devices: int
    per_node: int
    minibatch: int  # samples of a device and step
    max_tokens: int
    microbatches: float
    kind: str = SFT
    rollouts: int = 1  # samples of a prompt
    updates: int = 1
    passes: int = 0  # without backward
    critic: bool = False
    attention: str = ""  # the kernel that was priced, where that is known
    each: int = 0  # samples of a microbatch, where they are counted
    rows: int = 1  # of a microbatch, where they are packed: each of them may hold so many of its tokens
    longest: int = 0  # tokens of a sample; 0: nobody said
    model: str = ""  # as it was asked for
    epochs: float | None = None
    steps: int = 0  # of the whole run; 0: nobody said
    engine_gpus: int = 0  # that an inference engine of rollouts has; 0: nobody said
    memory_share: float = 0.0  # of each of them that it fills
    data: str = ""
    cut: int = 0  # tokens that samples were shortened to; 0: they were not
    dropped: int = 0  # tokens over which samples were dropped
    answer: int = 0  # tokens of the longest answer, and of the longest prompt; 0: nobody said
    prompt: int = 0
    samples_made: float = 0.0  # of a step, where a trainer makes it by itself
    tokens_made: float = 0.0
    group_by_length: bool = False
    meets: bool = False  # whether gradients leave with each microbatch, whatever the trainer wants
    cutting: str = CUTS  # what becomes of longer samples than `longest`, where a configuration says it

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.per_node)

    @property
    def hybrid(self) -> bool:
        """Whether each of several nodes has all parameters."""
        return self.recipe.on(self.nodes).sharding == "hybrid"

    @property
    def whole(self) -> bool:
        """Whether every device has all parameters."""
        return self.recipe.on(self.nodes).sharding == WHOLE

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
        """Of an update, where each stands for several samples."""
        if self.samples % self.rollouts:
            fix = f"give a divisor of {self.samples}"
            raise InputError(f"--rollouts {self.rollouts} does not divide {self.samples} samples of a step", fix=fix)
        return self.samples // self.rollouts

    @property
    def pairs(self) -> bool:
        """Whether samples are pairs, of what was chosen and rejected."""
        return self.kind == DPO

    @property
    def chunked(self) -> bool:
        """Whether no more than a part of the logits is there at a time."""
        return bool(self.recipe.value("loss") != "whole")

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

    @property
    def weights(self) -> str:
        """The model as a hub or a folder has it: that of a catalogue's name or a config.json is to be named."""
        if "/" in self.model and not self.model.endswith(".json"):
            return self.model
        return ELSEWHERE + (self.model.replace("\\", "/").rpartition("/")[2].removesuffix(".json") or "your-model")

    def model_and_epochs(self, model: str, epochs: str = "") -> Settings:
        """The model's weights, and epochs, where somebody asked for some."""
        whole = int(self.epochs) if self.epochs and not self.epochs % 1 else self.epochs
        return {model: self.weights} | ({epochs: whole} if epochs and whole else {})

    def whole_epochs(self, name: str) -> Settings:
        """Of who counts no part of one."""
        if not self.epochs:
            return {}
        if self.epochs % 1:
            raise InputError(f"--epochs {self.epochs:g}, and it counts whole ones", fix="ask for 1 or more")
        return {name: int(self.epochs)}

    def generation(self, steps: str, gpus: str, memory: str, times: int = 1) -> Settings:
        """Steps of the whole run, in so many of the trainer's own each; GPUs of an inference engine, and how far it
        fills them."""
        settings: Settings = {steps: self.steps * times} if self.steps else {}
        return settings | ({gpus: self.engine_gpus, memory: self.memory_share} if self.engine_gpus else {})

    def kernel(self, name: str, names: Mapping[str, str] = ATTENTIONS) -> Settings:
        """What a trainer calls the kernel of attention."""
        return {name: names[self.attention]} if self.attention in names else {}

    def optimizer(self, name: str) -> Settings:
        """What transformers calls it, where another than its usual one is meant."""
        known = OPTIMIZERS.get(self.recipe.optimizer)
        return {name: known} if known else {}


@dataclass(frozen=True, slots=True)
class Rule:
    """A way in which a trainer makes a step's microbatches: by which balancer, and of which rows, if it packs some; in
    which kinds of training (none: in all)."""

    balancer: str
    says: str
    rows: Callable[[Sequence[int], int], Rows] | None = None
    group: int = 0  # samples that are packed at once; 0: all
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """How a trainer is started for one kind of training: the command, and the settings behind it or in a file."""

    command: str  # with {file}, where settings are in one
    settings: Callable[[ChosenRow], Settings]
    source: str  # where the names were read
    read: Callable[[Values, Launcher], ChosenRow]  # the other way
    programs: tuple[str, ...] = ()  # in a command, by which it is known
    marks: tuple[str, ...] = ()  # in a file: the trainer of whose names most are there is meant
    own: tuple[str, ...] = ()  # of those in no other kind of training: the kind of which most are there is


@dataclass(frozen=True, slots=True)
class Neighbour:
    """How it is started, how its settings are written (`form`: shell, hydra or yaml), and how it deals."""

    name: str
    form: str
    entries: Mapping[str, Entry]  # of each kind of training that it has
    syncs: tuple[str, ...]  # that it runs by itself
    rules: tuple[Rule, ...]  # between which its settings choose
    knows: frozenset[str] = frozenset()  # what of a recipe its settings say, beside recompute of whole layers
    engine: str = ""  # the page on running it on demand by odc_engine
    caution: str = ""
    balancers: tuple[Balancer, ...] = ()  # its rules, as rivals to our balancers
    assumes: Mapping[str, str] = field(default_factory=dict)  # its kernels, where nobody chooses others
    ending: str = DROPPED  # what becomes of an epoch's last step

    def settings(self, row: ChosenRow) -> Settings:
        """By its own names."""
        return self.entries[row.kind].settings(row)

    def command(self, row: ChosenRow, file: str = "") -> str:
        """The command under which it runs the row."""
        each, nodes, per_node = row.recipe.context, 1, row.devices
        mesh = (IN_NODES if row.hybrid or each > 1 else "") + (IN_GROUPS if each > 1 else "")
        if row.hybrid:
            nodes, per_node = row.nodes, row.per_node
        mesh = mesh.format(nodes=nodes, per_node=per_node // each, context=each)
        per_machine = min(row.devices, row.per_node)
        reshard = str(row.recipe.reshard).lower()
        sharding = FSDP.format(mesh=mesh, reshard=reshard) if not row.whole else DDP if row.devices > 1 else ""
        words = {"devices": row.devices, "machines": row.nodes, "per_machine": per_machine, "file": file}
        words |= {"sharding": sharding}
        return self.entries[row.kind].command.format(**words, weights=row.weights.rpartition("/")[2])

    def kind(self, trace: Trace) -> str:
        """What it trains on such samples: supervised, where it has nothing that is theirs."""
        return trace.kind if trace.kind in self.entries else SFT

    def own(self, trace: Trace) -> tuple[Rule, ...]:
        """By which it deals such samples, by itself."""
        return tuple(rule for rule in self.rules if not rule.kinds or self.kind(trace) in rule.kinds)


def unusual(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Choices that not every trainer's settings say: as `knows` has each, as a command line does, and in words, which
    a row has of those that some trainer knows."""
    if recipe.sharding == "hybrid":
        yield "hybrid", "--sharding hybrid", "sharding inside each node alone"
    if recipe.sharding == WHOLE:
        yield "whole", "--sharding none", "no sharding (DDP)"
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
    lacks = [flag for name, flag, _ in unusual(recipe) if name not in trainer.knows]
    loss, usual = recipe.value("loss"), trainer.assumes.get("loss", CHOICES["loss"].usual)
    if loss not in (usual, *trainer.knows):
        lacks.append(f"--loss {loss}")  # which decides how much memory there is
    return lacks


def start_row(
    values: Values,
    launch: Launcher,
    words: Mapping[str, Any],
    *,
    balancer: str,
    minibatch: int,
    each: int = 0,
    max_tokens: int = 0,
    kernel: str = "attn_implementation",
    **more: Any,
) -> ChosenRow:
    """What every trainer's configuration comes to. `words`: of the recipe, beside how the model is sharded and the
    kernel of attention. `minibatch`: of a device."""
    devices = launch.gpus
    if not devices:
        fix = "say how many GPUs it runs on: --devices"
        raise InputError("says nothing of GPUs", where=values.where, fix=fix)
    named = values.get(kernel) if kernel else None
    attention = KERNEL_NAMES.get(str(named or "sdpa").lower(), "")
    if not attention:
        values.note(f"{values.names.get(plain(kernel), kernel)}: {named} is not known, and priced as sdpa")
    shards = {"sharding": launch.sharding, "reshard": launch.reshard, "context": launch.context}
    host = launch.offload and launch.sharding != WHOLE
    recipe = USUAL.by(**{"attention": attention or "sdpa", **shards, "offload": host, **words})
    for note in launch.notes:
        values.note(note)
    per_node = launch.per_machine or min(devices, 8)
    microbatches = minibatch / each if each else float(minibatch)
    return ChosenRow(
        recipe, balancer, devices, per_node, minibatch, max_tokens, microbatches, attention=attention or "sdpa",
        each=each, meets=launch.meets_each, **more,
    )  # fmt: skip


def read_optimizer(values: Values, name: str) -> dict[str, str]:
    """Of transformers' optimizers those that are AdamW; others are priced as it."""
    found = values.text(name, USUAL_OPTIMIZER).lower().removeprefix("optimizernames.")
    if found not in (*EIGHT_BITS, *ADAMS):
        values.note(f"{name}: {found} is priced as AdamW")
    return {"optimizer": "8bit"} if found in EIGHT_BITS else {}


def read_adapters(values: Values, adapted: bool, rank: str, default: int, bits: int) -> dict[str, Any]:
    """Words of a recipe: adapters of a rank, over weights in 4 bits or as they are."""
    size = values.whole(rank, default)
    if bits == 8:
        values.note("weights in 8 bits are priced as bf16")
    return {"lora": size, "quantization": "nf4" if bits == 4 else "none"} if adapted else {}


def read_bits(values: Values) -> int:
    """Of frozen weights, by the names of bitsandbytes; 16 where they are as they come."""
    four, eight = values.flag("load_in_4bit"), values.flag("load_in_8bit")
    return 4 if four else 8 if eight else 16
