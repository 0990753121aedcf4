"""accelerate: a loop of one's own, or transformers' `Trainer`, whose names these are."""

import json

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
)
from odcsim.trace import SFT


def settings(row: ChosenRow) -> Settings:
    known = row.model_and_epochs("--model_name_or_path", "--num_train_epochs")
    return known | batch_settings(row) | liger(row, "--use_liger_kernel") | row.optimizer("--optim")


def liger(row: ChosenRow, name: str) -> Settings:
    """A loss that never has all logits is Liger's; its other kernels come with it."""
    return {name: True} if row.chunked else {}


def batch_settings(row: ChosenRow) -> Settings:
    """Of transformers' `TrainingArguments`, and of all trainers on them: how a step is cut."""
    settings: Settings = {
        "--per_device_train_batch_size": (row.each or 1) if row.sync.meets else row.minibatch,
        "--gradient_accumulation_steps": row.accumulation if row.sync.meets else 1,
        "--gradient_checkpointing": row.recipe.recomputes,
        "--bf16": True,
    }
    if row.group_by_length:
        settings["--train_sampling_strategy"] = "group_by_length"
    if row.meets_each:
        settings["--accelerator_config"] = json.dumps(EACH_BATCH)
    return settings


ACCELERATE = Neighbour(
    "accelerate",
    "shell",
    {SFT: Entry(f"{ACCELERATE_LAUNCH}your_script.py", settings, "transformers 5.23.0, TrainingArguments")},
    LAST,
    (Rule(IN_PADDED, "batches as they come, padded to the longest of each"),),
    frozenset({"hybrid", "whole", "moments", "by_length", "context", "chunked"}),
    "docs/hugging-face.md",
    "your_script.py reads these by HfArgumentParser, loads data and model, and trains by transformers' Trainer",
    assumes=PLAIN,
    ending=KEPT,
)
