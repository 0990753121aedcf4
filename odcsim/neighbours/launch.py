"""How a run is started: by accelerate, torchrun, DeepSpeed or a cluster's own words. How many GPUs, and what of a model
each of them holds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.neighbours.values import RunEnds, Values, is_here, scalar
from odcsim.program import WHOLE
from odcsim.support.inputs import read_text, reading
from odcsim.support.values import Given

# FSDP1's names (accelerate 1.15.0, FSDP_SHARDING_STRATEGY) and FSDP2's.
STRATEGIES = {
    "full_shard": ("full", True), "1": ("full", True), "shard_grad_op": ("full", False), "2": ("full", False),
    "no_shard": (WHOLE, True), "3": (WHOLE, True), "hybrid_shard": ("hybrid", True), "4": ("hybrid", True),
    "hybrid_shard_zero2": ("hybrid", False), "5": ("hybrid", False),
}  # fmt: skip
SHARD_GRAD = "ZeRO-2 keeps whole parameters: priced as FSDP that gathers them once a step"
RECOMPUTED = "FSDP's activation_checkpointing computes layers again, whatever the trainer's own says"
# Files of accelerate that come with TRL (1.16.0, trl/accelerate_configs), as sharding and ZeRO's stage.
SHIPPED = {"single_gpu": (WHOLE, 0), "multi_gpu": (WHOLE, 0), "fsdp1": ("full", 0), "fsdp2": ("full", 0),
           "zero1": (WHOLE, 1), "zero2": ("full", 2), "zero3": ("full", 3)}  # fmt: skip
NAMED = "of {name} only its name was read, which is not here"


@dataclass(frozen=True, slots=True)
class Launcher:
    """What the command or the file around a trainer says. 0: nobody says."""

    devices: int = 0
    machines: int = 0
    per_machine: int = 0
    sharding: str = WHOLE
    reshard: bool = True
    offload: bool = False
    context: int = 1
    meets_each: bool = False  # gradients leave with each microbatch, whatever the trainer wants
    recompute: bool = False  # by FSDP's own activation_checkpointing
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return self.devices or self.machines * self.per_machine or self.per_machine

    @property
    def workers(self) -> int:
        """Groups of GPUs that have samples of their own."""
        return self.gpus // self.context

    def with_context(self, each: int, where: str) -> "Launcher":
        """With so many GPUs to a sample."""
        if self.gpus % each:
            problem = f"samples shared by {each} GPUs each, on {self.gpus}"
            raise RunEnds(problem, where=where, fix="it ends at once: give a divisor")
        return replace(self, context=each)


def of_torchrun(values: Values) -> Launcher:
    """Of torchrun, of `python -m torch.distributed.run` and of the flags that a trainer passes to it."""
    words = values.text("nnodes", "1").rpartition(":")[2], values.text("nproc_per_node")
    machines, each = (int(word) if word.isdecimal() and len(word) < 10 else 0 for word in words)  # a variable, or auto
    return Launcher(machines=machines, per_machine=each if machines else 0)  # as many machines as nobody says


def of_deepspeed_launcher(values: Values) -> Launcher:
    machines, each = values.whole("num_nodes", 1, -1), values.whole("num_gpus", 0, -1)  # -1: all that there are
    return Launcher(machines=max(machines, 0), per_machine=max(each, 0))


def of_accelerate(values: Values, folder: Path) -> Launcher:
    """Of `accelerate launch`, or of its own file: flags and keys have the same names, and those of a file lie in
    `fsdp_config`, `deepspeed_config` and `parallelism_config`."""
    devices, machines = values.whole("num_processes", 0, 0), values.whole("num_machines", 1)
    launch = Launcher(devices=devices, machines=machines, per_machine=devices // machines)
    kind = values.text("distributed_type").upper()
    if values.flag("use_deepspeed") or kind == "DEEPSPEED":
        file = values.first(("deepspeed_config_file", "deepspeed_config.deepspeed_config_file"))
        if file:
            return with_deepspeed(launch, file, folder)
        stage = values.first(("zero_stage", "deepspeed_config.zero_stage"), 2)
        host = values.first(("offload_optimizer_device", "deepspeed_config.offload_optimizer_device"), "none")
        return zero(launch, stage, host not in (None, "none"))
    if values.flag("use_fsdp") or kind == "FSDP":
        launch = with_fsdp(launch, values, ("fsdp_", "fsdp_config.fsdp_", "fsdp_config."))
    values.under("fsdp_")
    values.under("deepspeed_config")
    copies, shards, each = (
        values.whole(
            (f"parallelism_config_{n}", f"parallelism_config.parallelism_config_{n}", f"parallelism_config.{n}"), 1
        )
        for n in ("dp_replicate_size", "dp_shard_size", "cp_size")
    )
    values.refuse_over(
        ("parallelism_config_tp_size", "parallelism_config.parallelism_config_tp_size"), "tensor parallelism"
    )
    if launch.sharding == "full" and copies > 1:
        launch = replace(launch, sharding="hybrid" if shards > 1 else WHOLE)
    return launch.with_context(each, values.where)


def with_fsdp(launch: Launcher, values: Values, prefixes: Sequence[str]) -> Launcher:
    """By FSDP's settings, wherever they stand."""

    def first(name: str, default: Any = None) -> Any:
        return values.first([f"{prefix}{name}" for prefix in prefixes], default)

    again, strategy = first("reshard_after_forward", True), first("sharding_strategy")
    sharding, reshard = STRATEGIES.get(
        str(strategy if strategy is not None else again).lower(), ("full", again is not False)
    )
    host, again = (bool(first(name, False)) for name in ("offload_params", "activation_checkpointing"))
    notes = (*launch.notes, RECOMPUTED) if again else launch.notes
    return replace(launch, sharding=sharding, reshard=reshard, offload=host, recompute=again, notes=notes)


def with_deepspeed(launch: Launcher, file: Any, folder: Path) -> Launcher:
    """By a configuration of DeepSpeed's: itself, or its path. Of one that is not here its name may say the stage."""
    path = folder / str(file)
    if not is_here(path):
        stage = next((n for n in (3, 2, 1) if f"{n}" in path.stem), 0)
        launch = zero(launch, stage, "offload" in path.stem.lower())
        return replace(launch, notes=(*launch.notes, NAMED.format(name=path.name)))
    with reading(path, missing="give DeepSpeed's configuration", expected="DeepSpeed's configuration in JSON"):
        content = json.loads(read_text(path))
    own = Values(Given("its content", content, str(path)).mapping(), str(path))
    moments, weights = (own.get(f"zero_optimization.offload_{what}.device", "none") for what in ("optimizer", "param"))
    notes = list(launch.notes)
    if weights not in (None, "none"):
        notes.append("offload_param: parameters on the host are priced as if they stayed")
    if isinstance(each := own.get("train_micro_batch_size_per_gpu"), int):
        problem = f"train_micro_batch_size_per_gpu is {each} in DeepSpeed's file"
        notes.append(f"{problem}: another than the trainer's ends it")
    stage = own.get("zero_optimization.stage", 0)
    return zero(replace(launch, notes=tuple(notes)), stage, moments not in (None, "none"))


def zero(launch: Launcher, stage: Any, host: bool) -> Launcher:
    """ZeRO by its stage: with shards, DeepSpeed reduces gradients in every microbatch."""
    stage = scalar(str(stage))
    if stage == 3:
        return replace(launch, sharding="full", offload=host, meets_each=True)
    if stage == 2:
        notes = (*launch.notes, SHARD_GRAD)
        return replace(launch, sharding="full", reshard=False, offload=host, meets_each=True, notes=notes)
    if stage in (0, 1, None):
        return replace(launch, offload=host)
    raise InputError(f"ZeRO's stage is {stage!r:.20}", fix="give 0, 1, 2 or 3")
