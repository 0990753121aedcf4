"""axolotl: supervised fine-tuning."""

from collections.abc import Sequence

from odcsim.neighbours.neighbour import (
    DATA,
    EACH_BATCH,
    GITHUB,
    IN_BATCHES,
    IN_ROWS,
    KEPT,
    LAST,
    PLAIN,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
)
from odcsim.neighbours.packing import Rows, first_fit
from odcsim.trace import SFT

MOST = 200  # samples of a row
CUT = {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"], "cut_cross_entropy": True}


def settings(row: ChosenRow) -> Settings:
    """By itself it fills rows up with padding, which costs as much as samples; flattened batches have none."""
    rows = {"sequence_len": row.max_tokens, "sample_packing": True, "pad_to_sequence_len": False}
    flat = {"sequence_len": row.longest or row.max_tokens, "sample_packing": False, "batch_flattening": True}
    settings: Settings = {
        **row.model_and_epochs("base_model", "num_epochs"),
        "datasets": [{"path": DATA, "type": "chat_template"}],
        "learning_rate": 2e-5,
        "bf16": True,
        **(flat if row.each else rows),
        **row.kernel("attn_implementation"),
        "micro_batch_size": row.each or 1,
        "gradient_accumulation_steps": row.accumulation,
        "gradient_checkpointing": row.recipe.recomputes,
    }
    if not row.whole:
        fsdp = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": True}
        settings |= {"fsdp_version": 2, "fsdp_config": fsdp | {"offload_params": row.recipe.offload}}
    if row.chunked:
        settings |= CUT
    if row.meets_each:
        settings["accelerator_config"] = EACH_BATCH
    if row.hybrid:
        settings |= {"dp_shard_size": row.per_node, "dp_replicate_size": row.nodes}
    if row.recipe.lora:
        settings |= {"adapter": "qlora" if row.recipe.quantized else "lora", "lora_r": row.recipe.lora}
    if row.recipe.quantized:
        settings["load_in_4bit"] = True
    return settings | row.optimizer("optimizer")


def rows(lengths: Sequence[int], limit: int) -> Rows:
    return first_fit(lengths, limit, MOST)


AXOLOTL = Neighbour(
    "axolotl",
    "yaml",
    {
        SFT: Entry(
            "axolotl train {file} --launcher torchrun -- --nnodes {machines} --nproc_per_node {per_machine}",
            settings,
            f"axolotl 0.19.0, src/axolotl/utils/schemas ({GITHUB}/axolotl-ai-cloud/axolotl)",
        )
    },
    LAST,
    (
        Rule(IN_ROWS, f"packs of at most {MOST} samples, each as it comes into the first with room", rows, 100_000),
        Rule(IN_BATCHES, "batches as they come, flattened"),
    ),
    frozenset({"hybrid", "whole", "on_host", "rank", "quantized", "moments", "chunked", "attention"}),
    assumes=PLAIN,
    ending=KEPT,
)
