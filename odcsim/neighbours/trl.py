"""TRL: SFT, DPO and GRPO; its rule is pull request 6092, TokenBudgetBatcher.

Samples as they arrive, each into the open row of least squared lengths with room in the token budget, a row for each
device; where no row has room, all are run and new ones opened.
"""

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.neighbours.accelerate import batch_settings
from odcsim.neighbours.neighbour import (
    ACCELERATE_LAUNCH,
    DATA,
    IN_PADDED,
    IN_ROWS,
    KEPT,
    LAST,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
)
from odcsim.neighbours.packing import Row, best_fit
from odcsim.trace import DPO, GRPO, SFT

VLLM = "--vllm_"
PACKED = "seq_lengths"  # of a dataset that it packed: the lengths in each row


def settings(row: ChosenRow) -> Settings:
    """On demand the mixin takes the samples of a step as they are, and its own `max_tokens` limits a microbatch."""
    packing = row.sync.meets and not row.each
    return {
        **_base(row),
        "--packing": packing,
        "--max_length": row.max_tokens if packing else row.longest or row.max_tokens,
        **batch_settings(row),
    }


def dpo_settings(row: ChosenRow) -> Settings:
    """The reference model's log-probabilities are computed before, and not again in each epoch."""
    length = {"--max_length": row.longest or row.max_tokens, "--precompute_ref_log_probs": True}
    return {**_base(row), **length, **batch_settings(row)}


def grpo_settings(row: ChosenRow) -> Settings:
    """A process generates for all updates at once, and cuts what it has into their microbatches. A reference model runs
    where its divergence has a weight; the old policy, where answers are trained on after an update."""
    settings = _base(row) | batch_settings(row)
    settings["--steps_per_generation"] = settings["--gradient_accumulation_steps"] * row.updates
    if row.engine_gpus:  # generation was priced by an inference engine
        settings |= {"--use_vllm": None, f"{VLLM}mode": "colocate"}
    return settings | {
        **row.generation("--max_steps", f"{VLLM}tensor_parallel_size", f"{VLLM}gpu_memory_utilization", row.updates),
        "--num_generations": row.rollouts,
        "--max_completion_length": row.answer or row.longest or row.max_tokens,
        "--reward_funcs": "your_rewards.reward",
        "--beta": 0.04 if row.passes > (row.updates > 1) else 0.0,
    }


def _base(row: ChosenRow) -> Settings:
    settings: Settings = {
        **row.model_and_epochs("--model_name_or_path", "--num_train_epochs"),
        "--dataset_name": DATA,
        **row.kernel("--attn_implementation"),
    }
    if row.recipe.lora:
        settings |= {"--use_peft": None, "--lora_r": row.recipe.lora}
    if row.recipe.quantized:  # as FSDP shards them: stored as bf16
        settings |= {"--load_in_4bit": None, "--use_bnb_nested_quant": None, "--bnb_4bit_quant_storage": "bfloat16"}
    return settings | row.optimizer("--optim")


def deal(work: Work) -> Deal:
    """The right one to know what balancing by squares comes to, of samples as they arrive."""
    tokens, devices = work.tokens.tolist(), work.devices
    slots: list[list[Row]] = [[[]] for _ in range(devices)]
    squares, left = [0] * devices, [work.max_tokens] * devices
    for i, length in enumerate(tokens):
        if max(left) < length:  # no open row has room: all are run, and new ones opened
            for mine in slots:
                mine.append([])
            squares, left = [0] * devices, [work.max_tokens] * devices
        device = min((d for d in range(devices) if left[d] >= length), key=lambda d: (squares[d], d))
        slots[device][-1].append(i)
        squares[device] += length * length
        left[device] -= length
    return Deal(slots)


TRL = Neighbour(
    "trl",
    "shell",
    {
        kind: Entry(f"{ACCELERATE_LAUNCH}-m trl.scripts.{kind}", of, f"TRL 1.16.0, {names}")
        for kind, of, names in (
            (SFT, settings, "SFTConfig"),
            (DPO, dpo_settings, "DPOConfig"),
            (GRPO, grpo_settings, "GRPOConfig"),
        )
    },
    LAST,
    (
        Rule(IN_ROWS, "packs of a thousand samples by best fit decreasing", best_fit, 1000, (SFT,)),
        Rule(IN_PADDED, "batches as they come, padded to the longest of each"),
    ),
    frozenset({"hybrid", "whole", "rank", "quantized", "moments", "by_length", "attention", "policy"}),
    "docs/trl.md",
    balancers=(Balancer("trl", deal, "TRL's rows, even in squares of lengths", by_cost=False),),
    assumes={"stack": "plain"},  # its loss is in chunks (1.16.0: loss_type nll)
    ending=KEPT,
)
