"""accelerate: a loop of one's own, or transformers' `Trainer`, whose names these are."""

import json

from odcsim.neighbours.neighbour import (
    EACH_BATCH,
    IN_PADDED,
    KEPT,
    LAST,
    LAUNCHED,
    PLAIN,
    ChosenRow,
    Neighbour,
    Rule,
    Settings,
)


def settings(row: ChosenRow) -> Settings:
    known = row.model_and_epochs("--model_name_or_path", "--num_train_epochs")
    return known | batch_settings(row) | row.optimizer("--optim")


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
        settings["--accelerator_config"] = f"'{json.dumps(EACH_BATCH)}'"
    return settings


ACCELERATE = Neighbour(
    "accelerate",
    "shell",
    "transformers 5.23.0, TrainingArguments",
    settings,
    LAST,
    "batches as they come, padded to the longest of each",
    frozenset({"hybrid", "moments", "by_length", "context"}),
    "docs/hugging-face.md",
    rules=(Rule(IN_PADDED, "batches as they come, padded to the longest of each"),),
    assumes=PLAIN,
    ending=KEPT,
    launcher=LAUNCHED,
)
