"""slime: reinforcement learning on Megatron."""

from odcsim.balance.balancer import Deal, Work
from odcsim.neighbours.neighbour import COLLECTIVE, GITHUB, GOING_ON, ChosenRow, Neighbour, Settings
from odcsim.neighbours.verl import difference


def settings(row: ChosenRow) -> Settings:
    settings: Settings = {
        **row.model_and_epochs("--hf-checkpoint"),
        "--actor-num-nodes": row.nodes,
        "--actor-num-gpus-per-node": row.per_node,
        "--rollout-batch-size": row.prompts,
        "--n-samples-per-prompt": row.rollouts,
        "--global-batch-size": row.samples,
        "--use-dynamic-batch-size": None,
        "--max-tokens-per-gpu": row.max_tokens,
        "--balance-data": None,
    }
    if row.recipe.recompute == "operators":
        return settings | {"--recompute-granularity selective": None}
    if row.recipe.recompute == "none":
        return settings
    every = {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1}
    return settings | every


def deal(work: Work) -> Deal:
    """The right one to know what even tokens come to where attention is not even."""
    return difference(work, 1, 0)


SLIME = Neighbour(
    "slime",
    "shell",
    f"{GITHUB}/THUDM/slime, slime/utils/arguments.py, read 2026-11-22",
    settings,
    COLLECTIVE,
    "Karmarkar-Karp over tokens, for devices and for microbatches",
    frozenset({"operators"}),
    caution="slime runs Megatron, whose data parallelism keeps whole weights: memory was estimated for FSDP",
    deal=deal,
    help="Karmarkar-Karp over tokens",
    assumes={"loss": "whole"},  # Transformer Engine's layers are fused
    ending=GOING_ON,
    rollouts=True,
)
