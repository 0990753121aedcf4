"""slime: GRPO and SFT on Megatron."""

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.neighbours.neighbour import COLLECTIVE, DATA, GITHUB, GOING_ON, ChosenRow, Entry, Neighbour, Rule, Settings
from odcsim.neighbours.verl import difference
from odcsim.trace import GRPO, SFT

SOURCE = f"{GITHUB}/THUDM/slime at 624b824, slime/utils/arguments.py"
# A model's shape is arguments, too, in a script of theirs for each.
MODEL = "source scripts/models/{weights}.sh\n"


def grpo_settings(row: ChosenRow) -> Settings:
    return _base(row) | {
        "--advantage-estimator": "ppo" if row.critic else "grpo",
        "--custom-rm-path": "your_rewards.reward",
        "--rollout-batch-size": row.prompts * row.updates,
        "--n-samples-per-prompt": row.rollouts,
        **row.generation("--num-rollout", "--rollout-num-gpus-per-engine", "--sglang-mem-fraction-static"),
        "--rollout-max-response-len": row.answer or row.longest or row.max_tokens,
        "--global-batch-size": row.samples,
        "--colocate": None,
    }


def sft_settings(row: ChosenRow) -> Settings:
    """As its own scripts for SFT have it (scripts/run-qwen3-4B-base-sft.sh)."""
    return _base(row) | {
        "--rollout-function-path": "slime.rollout.sft_rollout.generate_rollout",
        "--loss-type": "sft_loss",
        "--calculate-per-token-loss": None,
        "--disable-compute-advantages-and-returns": None,
        "--debug-train-only": None,
        "--rollout-batch-size": row.samples,
        "--global-batch-size": row.samples,
    }


def _base(row: ChosenRow) -> Settings:
    settings: Settings = {
        "--hf-checkpoint": row.weights,
        **row.whole_epochs("--num-epoch"),
        "--load": f"{row.weights}_torch_dist",
        "--prompt-data": DATA,
        "--input-key": "messages" if row.kind == SFT else "prompt",
        "--actor-num-nodes": row.nodes,
        "--actor-num-gpus-per-node": min(row.devices, row.per_node),
        "--use-dynamic-batch-size": None,
        "--max-tokens-per-gpu": row.max_tokens,
        "--balance-data": None,
        "--attention-backend": "flash",
    }
    if row.recipe.recompute == "operators":
        return settings | {"--recompute-granularity": "selective"}
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
    {
        SFT: Entry(MODEL + 'python3 train_async.py "${{MODEL_ARGS[@]}}"', sft_settings, SOURCE),
        GRPO: Entry(MODEL + 'python3 train.py "${{MODEL_ARGS[@]}}"', grpo_settings, SOURCE),
    },
    COLLECTIVE,
    (Rule("slime", "Karmarkar-Karp over tokens, for devices and for microbatches"),),
    frozenset({"operators", "attention"}),
    caution="slime runs Megatron, whose data parallelism keeps whole weights: memory was estimated for FSDP",
    balancers=(Balancer("slime", deal, "Karmarkar-Karp over tokens", by_cost=False),),
    assumes={"loss": "whole"},  # Transformer Engine's layers are fused
    ending=GOING_ON,
)
