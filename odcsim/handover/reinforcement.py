"""Settings of trainers of reinforcement learning."""

from typing import Any

from odcsim.handover.chosen import ChosenRow


def verl(row: ChosenRow) -> dict[str, Any]:
    """Its minibatch is of prompts, each of which stands for rollout.n samples."""
    actor, model = "actor_rollout_ref.actor", "actor_rollout_ref.model"
    settings = {
        "trainer.nnodes": row.nodes,
        "trainer.n_gpus_per_node": row.per_node,
        "trainer.balance_batch": True,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": row.max_tokens,
        f"{actor}.ppo_mini_batch_size": max(1, row.samples // row.rollouts),
        f"{actor}.fsdp_config.fsdp_size": row.per_node if row.hybrid else -1,
        f"{model}.enable_gradient_checkpointing": row.recompute != "none",
    }
    if row.on_host:
        settings[f"{actor}.fsdp_config.optimizer_offload"] = True
    if row.rank:
        settings[f"{model}.lora_rank"] = row.rank
    return settings


def slime(row: ChosenRow) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "--actor-num-nodes": row.nodes,
        "--actor-num-gpus-per-node": row.per_node,
        "--global-batch-size": row.samples,
        "--use-dynamic-batch-size": None,
        "--max-tokens-per-gpu": row.max_tokens,
        "--balance-data": None,
    }
    if row.recompute == "operators":
        return settings | {"--recompute-granularity selective": None}
    if row.recompute == "none":
        return settings
    every = {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1}
    return settings | every


def nemo_rl(row: ChosenRow) -> dict[str, Any]:
    """Packs and dynamic batches exclude each other."""
    settings = {
        "cluster.num_nodes": row.nodes,
        "cluster.gpus_per_node": row.per_node,
        "policy.train_global_batch_size": row.samples,
        "policy.dynamic_batching.enabled": False,
        "policy.sequence_packing.enabled": True,
        "policy.sequence_packing.train_mb_tokens": row.max_tokens,
        "policy.dtensor_cfg.enabled": True,
        "policy.dtensor_cfg.activation_checkpointing": row.recompute != "none",
    }
    return settings | ({"policy.dtensor_cfg.cpu_offload": True} if row.on_host else {})
