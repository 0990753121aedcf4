"""NeMo-RL: GRPO and SFT; packing at 7ea279a and pull request 3476.

First fit decreasing by tokens, bins a multiple of the devices and dealt in turn; each device runs its largest first.
"""

from dataclasses import replace

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.errors import InputError
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.neighbour import (
    COLLECTIVE,
    DATA,
    GITHUB,
    IN_PADDED,
    PLAIN,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    start_row,
)
from odcsim.neighbours.packing import first_fit_decreasing
from odcsim.neighbours.values import RunEnds, Values
from odcsim.trace import GRPO, SFT

SKIPS = "grpo.skip_reference_policy_logprobs_calculation"
FOREVER = 1_000_000  # steps, of who means to end after epochs
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
        **({} if row.passes > 1 else {f"++{SKIPS}": True, "loss_fn.reference_policy_kl_penalty": 0.0}),
    }


def sft_settings(row: ChosenRow) -> Settings:
    """Its configuration ends after 60 steps, whatever its epochs are."""
    return _base(row) | {
        **row.whole_epochs("sft.max_num_epochs"),
        "sft.max_num_steps": row.steps or FOREVER,
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
        "policy.sequence_packing.enabled": not row.each,
        **({"policy.train_micro_batch_size": row.each} if row.each else {}),
        **({} if row.each else {"policy.sequence_packing.train_mb_tokens": row.max_tokens // row.recipe.context}),
        "policy.dtensor_cfg.enabled": True,
        "policy.dtensor_cfg.activation_checkpointing": row.recipe.recomputes,
    }
    return settings | ({"policy.dtensor_cfg.cpu_offload": True} if row.recipe.offload else {})


def read(values: Values, launch: Launcher) -> ChosenRow:
    """Of its two ways to fill microbatches by tokens, packing and dynamic batches, or so many samples in each. GRPO
    where it says anything of rollouts."""
    if values.flag("policy.megatron_cfg.enabled"):
        fix = "its DTensor policy alone is priced: ask with policy.dtensor_cfg.enabled=true"
        raise InputError("policy.megatron_cfg.enabled", where=values.where, fix=fix)
    if any(name.startswith("dpo.") for name in values.names):
        raise InputError("is for DPO", where=values.where, fix="its SFT and GRPO alone are priced")
    grpo = any(name.startswith("grpo.") for name in values.names)
    values.refuse_over(("policy.dtensor_cfg.tensor_parallel_size",), "tensor parallelism")
    if not launch.gpus:
        machines, each = values.whole("cluster.num_nodes", 1), values.whole("cluster.gpus_per_node", 1)
        launch = replace(launch, machines=machines, per_machine=each)
    shared = values.whole("policy.dtensor_cfg.context_parallel_size", 1)
    words = {
        **PLAIN,
        "sync": "collective",
        "recompute": "full" if values.flag("policy.dtensor_cfg.activation_checkpointing") else "none",
        "attention": "sdpa",
        "lora": values.whole("policy.dtensor_cfg.lora_cfg.dim", 8)
        if values.flag("policy.dtensor_cfg.lora_cfg.enabled")
        else 0,
    }
    launch = launch.with_context(shared, values.where)
    launch = replace(launch, sharding="full", offload=values.flag("policy.dtensor_cfg.cpu_offload"))
    row = start_row(values, launch, words, balancer="nemo-rl", minibatch=1, kernel="")
    batch, longest = (
        values.whole("policy.train_global_batch_size", 512 if grpo else 32),
        values.whole("policy.max_total_sequence_length", 512 if grpo else 1024),
    )
    if batch % row.workers:
        problem = f"policy.train_global_batch_size {batch} on {row.workers} ranks"
        raise RunEnds(problem, where=values.where, fix="it ends at once: give a multiple")
    each, share = values.whole("policy.train_micro_batch_size", 4 if grpo else 1), batch // row.workers
    row = replace(row, minibatch=share, longest=longest, model=values.text("policy.model_name"))
    if all(values.flag(f"policy.{way}.enabled") for way in ("sequence_packing", "dynamic_batching")):
        problem = "policy.sequence_packing and policy.dynamic_batching are both enabled"
        raise RunEnds(problem, where=values.where, fix="it ends at once: enable one of them")
    for way in ("sequence_packing", "dynamic_batching"):
        if values.flag(f"policy.{way}.enabled"):
            row = replace(row, max_tokens=values.whole(f"policy.{way}.train_mb_tokens", longest * each) * shared)
    if not row.max_tokens:
        row = replace(row, balancer=IN_PADDED, each=each, microbatches=share / each)
    row = replace(
        row, data=str(values.first(("data.train.data_path", "data.train.dataset_name", "data.dataset_name"), ""))
    )
    if not grpo:
        most, epochs = values.whole("sft.max_num_steps", 0, 0), values.number("sft.max_num_epochs", 0.0) or None
        return replace(row, epochs=epochs, steps=0 if most >= FOREVER else most)
    made = values.whole("grpo.num_prompts_per_step", 32) * values.whole("grpo.num_generations_per_prompt", 16)
    engine = values.whole(f"{VLLM}.tensor_parallel_size", 1)
    return replace(
        row,
        kind=GRPO,
        rollouts=values.whole("grpo.num_generations_per_prompt", 16),
        updates=max(1, made // batch),
        passes=1 + (not values.flag(SKIPS)),
        answer=longest,
        engine_gpus=engine,
        memory_share=values.number(f"{VLLM}.gpu_memory_utilization", 0.6),
        steps=values.whole("grpo.max_num_steps", 0, 0) % FOREVER,
        epochs=values.number("grpo.max_num_epochs", 0.0) or None,
    )


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
        SFT: Entry(
            "uv run examples/run_sft.py --config examples/configs/sft.yaml",
            sft_settings,
            f"{SOURCE}sft.yaml",
            read,
            ("run_sft.py",),
            ("policy.model_name", "policy.train_global_batch_size"),
            ("sft",),
        ),
        GRPO: Entry(
            "uv run examples/run_grpo.py --config examples/configs/grpo_math_1B.yaml",
            grpo_settings,
            f"{SOURCE}grpo_math_1B.yaml",
            read,
            ("run_grpo.py", "run_grpo_math.py"),
            ("policy.model_name", "policy.train_global_batch_size"),
            ("grpo",),
        ),
    },
    COLLECTIVE,
    (Rule("nemo-rl", "first fit decreasing into packs"),),
    frozenset({"on_host"}),
    balancers=(Balancer("nemo-rl", deal, "NeMo-RL's packing by tokens, largest first", by_cost=False),),
    assumes=PLAIN,
)
