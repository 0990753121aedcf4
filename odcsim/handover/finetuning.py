"""Settings of trainers of supervised fine-tuning: a microbatch is one pack, a step so many of them."""

from typing import Any

from odcsim.handover.chosen import ENGINE, ChosenRow

OPTIMIZERS = {"8bit": "adamw_torch_8bit"}  # that of bitsandbytes does not take FSDP2's tensors


def trl(row: ChosenRow) -> dict[str, Any]:
    """On demand the mixin takes the samples of a step as they are, and its own `max_tokens` limits a microbatch."""
    apart = row.way == ENGINE
    settings: dict[str, Any] = {
        "--packing": not apart,
        "--max_length": row.max_tokens,
        "--per_device_train_batch_size": row.minibatch if apart else 1,
        "--gradient_accumulation_steps": 1 if apart else row.packs,
        "--gradient_checkpointing": row.recompute != "none",
        "--bf16": True,
    }
    if row.rank:
        settings |= {"--use_peft": None, "--lora_r": row.rank}
    return settings | _optimizer("--optim", row)


def torchtitan(row: ChosenRow) -> dict[str, Any]:
    """A subcommand comes last: what stands behind it is its own."""
    subcommands = {"full": "activation-checkpoint:full", "none": "activation-checkpoint:none"}
    settings: dict[str, Any] = {
        "--training.seq_len": row.max_tokens,
        "--training.local_batch_size": 1,
        "--training.global_batch_size": row.devices * row.packs,
        "--parallelism.data_parallel_shard_degree": row.per_node if row.hybrid else row.devices,
        "--parallelism.data_parallel_replicate_degree": row.nodes if row.hybrid else 1,
    }
    if row.on_host:
        settings["--training.enable_cpu_offload"] = None
    return settings | {subcommands.get(row.recompute, "activation-checkpoint:selective"): None}


def axolotl(row: ChosenRow) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "sequence_len": row.max_tokens,
        "sample_packing": True,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": row.packs,
        "gradient_checkpointing": row.recompute != "none",
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": True,
            "offload_params": row.on_host,
        },
    }
    if row.hybrid:
        settings |= {"dp_shard_size": row.per_node, "dp_replicate_size": row.nodes}
    if row.rank:
        settings |= {"adapter": "lora", "lora_r": row.rank}
    return settings | _optimizer("optimizer", row)


def llama_factory(row: ChosenRow) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "cutoff_len": row.max_tokens,
        "packing": True,
        "neat_packing": True,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": row.packs,
        "disable_gradient_checkpointing": row.recompute == "none",
    }
    if row.rank:
        settings |= {"finetuning_type": "lora", "lora_rank": row.rank}
    return settings | _optimizer("optim", row)


def _optimizer(name: str, row: ChosenRow) -> dict[str, Any]:
    known = OPTIMIZERS.get(row.moments)
    return {name: known} if known else {}
