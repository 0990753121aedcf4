"""LLaMA-Factory: supervised fine-tuning."""

from collections.abc import Sequence
from dataclasses import replace

from odcsim.errors import InputError
from odcsim.neighbours.accelerate import MARKS, liger, read_arguments, read_liger
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.neighbour import (
    ACCELERATE_LAUNCH,
    DATA,
    EACH_BATCH,
    GITHUB,
    IN_FULL_ROWS,
    IN_PADDED,
    KEPT,
    LAST,
    PLAIN,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    read_adapters,
)
from odcsim.neighbours.packing import Rows, knapsacks
from odcsim.neighbours.values import Values
from odcsim.trace import SFT

ATTENTIONS = {"fa2": "fa2", "fa3": "fa3", "sdpa": "sdpa", "eager": "disabled"}
KERNELS_BY_NAME = {name: kernel for kernel, name in ATTENTIONS.items()} | {"auto": "sdpa"}


def settings(row: ChosenRow) -> Settings:
    packing = not row.each
    settings: Settings = {
        **row.model_and_epochs("model_name_or_path", "num_train_epochs"),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora" if row.recipe.lora else "full",
        "dataset_dir": DATA,
        "dataset": "your_data",
        "output_dir": "out",
        **row.kernel("flash_attn", ATTENTIONS),
        **liger(row, "enable_liger_kernel"),
        "cutoff_len": row.max_tokens // row.rows if packing else row.longest or row.max_tokens,
        "packing": packing,
        "neat_packing": packing,
        "per_device_train_batch_size": row.each or row.rows,
        "gradient_accumulation_steps": row.accumulation,
        "bf16": True,
        "disable_gradient_checkpointing": not row.recipe.recomputes,
    }
    if row.recipe.value("stack") == "compiled":
        settings["torch_compile"] = True
    if row.meets_each and not row.meets:
        settings["accelerator_config"] = EACH_BATCH
    if row.recipe.lora:
        settings["lora_rank"] = row.recipe.lora
    if row.recipe.quantized:
        settings["quantization_bit"] = 4
    return settings | row.optimizer("optim")


def read(values: Values, launch: Launcher) -> ChosenRow:
    """Adapters are usual, and so is recompute."""
    if (stage := values.text("stage", "sft")) not in ("sft", "pt"):
        raise InputError(f"stage is {stage}", where=values.where, fix="its supervised training alone is priced")
    again = not values.flag("disable_gradient_checkpointing")
    row = read_arguments(values, launch, PLAIN, again=again)
    adapted = values.text("finetuning_type", "lora") == "lora"
    if (kind := values.text("finetuning_type", "lora")) == "freeze":
        values.note(f"finetuning_type {kind} is priced as full")
    words = read_adapters(values, adapted, "lora_rank", 8, values.whole("quantization_bit", 16))
    words |= read_liger(values, "enable_liger_kernel")
    words["recompute"] = "full" if again else "none"
    kernel = KERNELS_BY_NAME.get(values.text("flash_attn", "auto"), "sdpa")
    if not adapted and row.whole and values.flag("bf16") and values.flag("pure_bf16"):
        words["optimizer"] = "pure"
    if values.flag("use_unsloth"):
        values.note("use_unsloth: its kernels are not priced")
    limit = values.whole("cutoff_len", 2048)
    row = replace(row, recipe=row.recipe.by(attention=kernel, **words), attention=kernel, longest=limit)
    row = replace(row, data=values.text("dataset"))
    if not values.flag("packing", stage == "pt"):
        return row
    if not values.flag("neat_packing"):
        values.note("packing without neat_packing: samples of a row attend to each other, which is not priced")
    each, steps = row.each, row.accumulation
    return replace(row, balancer=IN_FULL_ROWS, each=0, rows=each, minibatch=steps, max_tokens=limit * each)


def rows(lengths: Sequence[int], limit: int) -> Rows:
    """It packs into one token less than its cutoff, to which it fills rows up and cuts longer samples."""
    room = max(1, limit - 1)
    return knapsacks([min(length, room) for length in lengths], room)


LLAMA_FACTORY = Neighbour(
    "llamafactory",
    "yaml",
    {
        SFT: Entry(
            f"{ACCELERATE_LAUNCH}-m llamafactory.launcher {{file}}",
            settings,
            f"LLaMA-Factory 0.9.5, src/llamafactory/hparams ({GITHUB}/hiyouga/LLaMA-Factory)",
            read,
            ("llamafactory-cli train", "llamafactory.launcher", "src/train.py"),
            ("stage", "finetuning_type", "cutoff_len", "template", "dataset_dir", "do_train", *MARKS),
        )
    },
    LAST,
    (
        Rule(IN_FULL_ROWS, "knapsacks of a thousand samples, filled up to the limit with padding", rows, 1000),
        Rule(IN_PADDED, "batches as they come, padded to the longest of each"),
    ),
    frozenset({"hybrid", "whole", "rank", "quantized", "moments", "chunked", "attention", "compiled", "reshard"}),
    assumes=PLAIN,
    ending=KEPT,
)
