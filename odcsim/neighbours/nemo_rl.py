"""NeMo-RL: GRPO and SFT; packing at 7ea279a and pull request 3476.

First fit decreasing by tokens, bins a multiple of the devices and dealt in turn; each device runs its largest first.
"""

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.neighbours.neighbour import COLLECTIVE, DATA, GITHUB, PLAIN, ChosenRow, Entry, Neighbour, Rule, Settings
from odcsim.neighbours.packing import first_fit_decreasing
from odcsim.trace import GRPO, SFT

VLLM = "policy.generation.vllm_cfg"
SOURCE = f"{GITHUB}/NVIDIA-NeMo/RL at 7ea279a, examples/configs/"


def grpo_settings(row: ChosenRow) -> Settings:
    return _base(row) | {
        **row.whole_epochs("grpo.max_num_epochs"),
        "grpo.val_period": 0,
        "grpo.num_prompts_per_step": row.prompts * row.updates,
        "grpo.num_generations_per_prompt": row.rollouts,
        **row.generation("grpo.max_num_steps", f"{VLLM}.tensor_parallel_size", f"{VLLM}.gpu_memory_utilization"),
        "data.train.dataset_name": "ResponseDataset",
    }


def sft_settings(row: ChosenRow) -> Settings:
    """Its configuration ends after 60 steps, whatever its epochs are."""
    return _base(row) | {
        **row.whole_epochs("sft.max_num_epochs"),
        "sft.max_num_steps": row.steps or 1_000_000,
        "sft.val_period": 0,
        "sft.val_at_start": False,
        "data.train.dataset_name": "openai_format",
    }


def _base(row: ChosenRow) -> Settings:
    """Packs and dynamic batches exclude each other."""
    settings: Settings = {
        "policy.model_name": row.weights,
        "cluster.num_nodes": row.nodes,
        "cluster.gpus_per_node": min(row.devices, row.per_node),
        "++data.train.data_path": DATA,
        "data.validation": "null",
        "logger.wandb_enabled": False,
        "policy.max_total_sequence_length": row.longest or row.max_tokens,
        "policy.train_global_batch_size": row.samples,
        "policy.dynamic_batching.enabled": False,
        "policy.sequence_packing.enabled": True,
        "policy.sequence_packing.train_mb_tokens": row.max_tokens,
        "policy.dtensor_cfg.enabled": True,
        "policy.dtensor_cfg.activation_checkpointing": row.recipe.recomputes,
    }
    return settings | ({"policy.dtensor_cfg.cpu_offload": True} if row.recipe.offload else {})


def deal(work: Work) -> Deal:
    """The right one to know what packing by tokens comes to where nobody balances compute."""
    tokens, devices = work.tokens.tolist(), work.devices
    rows = first_fit_decreasing(tokens, work.max_tokens)
    while len(rows) % devices and (many := max(rows, key=len)) and len(many) > 1:
        rows.append([many.pop()])
    rows += [[] for _ in range(-len(rows) % devices)]
    in_turn = [rows[device::devices] for device in range(devices)]
    return Deal([sorted(mine, key=lambda row: -sum(tokens[i] for i in row)) for mine in in_turn])


NEMO_RL = Neighbour(
    "nemo-rl",
    "hydra",
    {
        SFT: Entry("uv run examples/run_sft.py --config examples/configs/sft.yaml", sft_settings, f"{SOURCE}sft.yaml"),
        GRPO: Entry(
            "uv run examples/run_grpo.py --config examples/configs/grpo_math_1B.yaml",
            grpo_settings,
            f"{SOURCE}grpo_math_1B.yaml",
        ),
    },
    COLLECTIVE,
    (Rule("nemo-rl", "first fit decreasing into packs"),),
    frozenset({"on_host"}),
    balancers=(Balancer("nemo-rl", deal, "NeMo-RL's packing by tokens, largest first", by_cost=False),),
    assumes=PLAIN,
)
