"""NeMo-RL: packing at 7ea279a and pull request 3476.

First fit decreasing by tokens, bins a multiple of the devices and dealt in turn; each device runs its largest first.
"""

from odcsim.balance.balancer import Deal, Work
from odcsim.neighbours.neighbour import COLLECTIVE, GITHUB, PLAIN, ChosenRow, Neighbour, Settings
from odcsim.neighbours.packing import first_fit_decreasing


def settings(row: ChosenRow) -> Settings:
    """Packs and dynamic batches exclude each other."""
    settings: Settings = {
        **row.model_and_epochs("policy.model_name"),
        "cluster.num_nodes": row.nodes,
        "cluster.gpus_per_node": row.per_node,
        "grpo.num_prompts_per_step": row.prompts,
        "grpo.num_generations_per_prompt": row.rollouts,
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
    f"{GITHUB}/NVIDIA-NeMo/RL at 00294d9, examples/configs/grpo_math_1B.yaml",
    settings,
    COLLECTIVE,
    "first fit decreasing into packs",
    frozenset({"on_host"}),
    deal=deal,
    help="NeMo-RL's packing by tokens, largest first",
    assumes=PLAIN,
    rollouts=True,
)
