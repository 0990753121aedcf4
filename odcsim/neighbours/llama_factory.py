"""LLaMA-Factory: supervised fine-tuning."""

from collections.abc import Sequence

from odcsim.neighbours.accelerate import liger
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
)
from odcsim.neighbours.packing import Rows, knapsacks
from odcsim.trace import SFT

ATTENTIONS = {"fa2": "fa2", "fa3": "fa3", "sdpa": "sdpa", "eager": "disabled"}


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
        "cutoff_len": row.max_tokens if packing else row.longest or row.max_tokens,
        "packing": packing,
        "neat_packing": packing,
        "per_device_train_batch_size": row.each or 1,
        "gradient_accumulation_steps": row.accumulation,
        "bf16": True,
        "disable_gradient_checkpointing": not row.recipe.recomputes,
    }
    if row.meets_each:
        settings["accelerator_config"] = EACH_BATCH
    if row.recipe.lora:
        settings["lora_rank"] = row.recipe.lora
    if row.recipe.quantized:
        settings["quantization_bit"] = 4
    return settings | row.optimizer("optim")


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
        )
    },
    LAST,
    (
        Rule(IN_FULL_ROWS, "knapsacks of a thousand samples, filled up to the limit with padding", rows, 1000),
        Rule(IN_PADDED, "batches as they come, padded to the longest of each"),
    ),
    frozenset({"hybrid", "whole", "rank", "quantized", "moments", "chunked", "attention"}),
    assumes=PLAIN,
    ending=KEPT,
)
