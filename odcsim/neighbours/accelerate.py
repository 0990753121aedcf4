"""accelerate: a loop of one's own, or transformers' `Trainer`, whose names these are."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from odcsim.neighbours.launch import STRATEGIES, Launcher, with_deepspeed, with_fsdp
from odcsim.neighbours.neighbour import (
    ACCELERATE_LAUNCH,
    EACH_BATCH,
    IN_PADDED,
    KEPT,
    LAST,
    PLAIN,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    read_optimizer,
    start_row,
)
from odcsim.neighbours.values import RunEnds, Values
from odcsim.trace import SFT

AGAIN = "activation_checkpointing"  # of which gradient_checkpointing is the older name (transformers 5.24.0)
MARKS = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps")


def settings(row: ChosenRow) -> Settings:
    known = row.model_and_epochs("--model_name_or_path", "--num_train_epochs")
    return known | batch_settings(row) | liger(row, "--use_liger_kernel") | row.optimizer("--optim")


def liger(row: ChosenRow, name: str) -> Settings:
    """A loss that never has all logits is Liger's; its other kernels come with it."""
    return {name: True} if row.chunked else {}


def batch_settings(row: ChosenRow) -> Settings:
    """Of transformers' `TrainingArguments`, and of all trainers on them: how a step is cut."""
    settings: Settings = {
        "--per_device_train_batch_size": (row.each or row.rows) if row.sync.meets else row.minibatch,
        "--gradient_accumulation_steps": row.accumulation if row.sync.meets else 1,
        "--gradient_checkpointing": row.recipe.recomputes,
        "--bf16": True,
    }
    if row.group_by_length:
        settings["--train_sampling_strategy"] = "group_by_length"
    if row.recipe.value("stack") == "compiled":
        settings["--torch_compile"] = True
    if row.meets_each and not row.meets:
        settings["--accelerator_config"] = json.dumps(EACH_BATCH)
    return settings


def read(values: Values, launch: Launcher) -> ChosenRow:
    row = read_arguments(values, launch, PLAIN)
    limit = values.whole(("block_size", "max_seq_length", "max_length", "model_max_length"), 0, 0)  # of scripts
    return replace(row, recipe=row.recipe.by(**read_liger(values, "use_liger_kernel")), longest=limit)


def read_liger(values: Values, name: str) -> dict[str, str]:
    return {"loss": "chunked"} if values.flag(name) else {}


def read_arguments(
    values: Values, launch: Launcher, assumes: Mapping[str, str], *, again: bool = False, bf16: bool = False
) -> ChosenRow:
    """Of transformers' `TrainingArguments`, padded batches. `again`, `bf16`: what the trainer on them takes itself."""
    launch = read_sharding(values, launch)
    each, steps = values.whole("per_device_train_batch_size", 8), values.whole("gradient_accumulation_steps", 1)
    each_batch = bool(values.get("accelerator_config.gradient_accumulation_kwargs.sync_each_batch", False))
    values.under("accelerator_config")
    words = read_optimizer(values, "optim") | dict(assumes)
    words["sync"] = "collective" if launch.meets_each or each_batch or steps == 1 else "deferred"
    again = values.flag(AGAIN if AGAIN in values else "gradient_checkpointing", again)
    if again and launch.recompute:
        problem, fix = "both FSDP's activation_checkpointing and the trainer's", "it ends at once: leave one out"
        raise RunEnds(problem, where=values.where, fix=fix)
    words["recompute"] = "full" if again or launch.recompute else "none"
    if values.flag("torch_compile"):
        words["stack"] = "compiled"
    if not (values.flag("bf16", bf16) or values.get("dtype") == "bfloat16" or values.get("mixed_precision") == "bf16"):
        values.note("bf16 is off: fp32 and fp16 are not priced, and these seconds are those of bf16: true")
    if values.flag("fp16") and values.flag("bf16"):
        raise RunEnds("both bf16 and fp16", where=values.where, fix="it ends at once: leave fp16 out")
    if values.flag("auto_find_batch_size"):
        values.note("auto_find_batch_size: where memory lacks, batch and seconds become others")
    by_length = values.text("train_sampling_strategy", "random") == "group_by_length" or values.flag("group_by_length")
    row = start_row(values, launch, words, each=each, minibatch=each * steps, balancer=IN_PADDED)
    name = "model_name_or_path"
    return replace(row, model=values.text(name), group_by_length=by_length, **read_length_of_run(values))


def read_length_of_run(values: Values, epochs: str = "num_train_epochs", steps: str = "max_steps") -> dict[str, Any]:
    """Epochs, which count where it is not told to end after so many steps."""
    most = values.whole(steps, -1, -1)
    count = values.number(epochs, 0.0)
    ends = most > 0
    if ends and epochs in values:
        values.note(f"{epochs} does nothing beside {steps}")
    return {"epochs": count or None, "steps": most if ends else 0}


def read_sharding(values: Values, launch: Launcher) -> Launcher:
    """As the trainer's own settings have it, where its launcher has nothing."""
    if (file := values.get("deepspeed")) is not None:
        launch = with_deepspeed(launch, file, values.folder)
    fsdp = values.get("fsdp")
    words = " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp or "")
    if fsdp is True or words.strip() not in ("", "False", "false"):
        launch = with_fsdp(launch, values, ("fsdp_config.fsdp_", "fsdp_config.", "fsdp_"))
        strategy = next((word for word in words.lower().replace(",", " ").split() if word in STRATEGIES), "full_shard")
        sharding, reshard = STRATEGIES[strategy]
        launch = replace(launch, sharding=sharding, reshard=reshard and launch.reshard)
        launch = replace(launch, offload=launch.offload or "offload" in words)
    if isinstance(file := values.get("fsdp_config"), str):
        values.note(f"fsdp_config {file} was not read: FSDP as usual is priced")
    values.under("fsdp_config")
    return launch


ACCELERATE = Neighbour(
    "accelerate",
    "shell",
    {
        SFT: Entry(
            f"{ACCELERATE_LAUNCH}your_script.py", settings, "transformers 5.23.0, TrainingArguments", read, marks=MARKS
        )
    },
    LAST,
    (Rule(IN_PADDED, "batches as they come, padded to the longest of each"),),
    frozenset({"hybrid", "whole", "moments", "by_length", "context", "chunked", "compiled", "reshard"}),
    "docs/hugging-face.md",
    "your_script.py reads these by HfArgumentParser, loads data and model, and trains by transformers' Trainer",
    assumes=PLAIN,
    ending=KEPT,
)
