"""verl: GRPO and SFT; its rules are those of verl/utils/seqlen_balancing.py at 1dda039.

Karmarkar-Karp over devices, as many samples on each, by 24,576 L + L^2 ("calibrated for a 7B model"); then over the
microbatches of each device, as many as the fullest one's tokens need. A step's samples are dealt at once, for all of
its updates. SFT has the second half alone: devices get samples as they come (0.9.1: sft_trainer.py).
"""

from collections.abc import Sequence

import numpy as np

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.balance.pack import fewest, pack
from odcsim.balance.partition import as_lists, differencing_equal
from odcsim.neighbours.neighbour import (
    COLLECTIVE,
    DATA,
    PLAIN,
    TORCHRUN,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
)
from odcsim.neighbours.packing import Rows
from odcsim.schedule import Schedule
from odcsim.trace import GRPO, SFT

TOKEN = 24_576  # its weight of a token where a squared one is 1, for every model


def grpo_settings(row: ChosenRow) -> Settings:
    """Its minibatch is of prompts, each of which stands for rollout.n samples."""
    actor, model = "actor_rollout_ref.actor", "actor_rollout_ref.model"
    return {
        "algorithm.adv_estimator": "gae" if row.critic else "grpo",
        "actor_rollout_ref.model.path": row.weights,
        **_base(row, model, f"{actor}.fsdp_config"),
        "data.val_files": f"{DATA}/val.parquet",
        "data.train_batch_size": row.prompts * row.updates,
        "data.max_response_length": row.answer or row.longest or row.max_tokens,
        **({"data.max_prompt_length": row.prompt} if row.prompt else {}),
        "trainer.nnodes": row.nodes,
        "trainer.n_gpus_per_node": min(row.devices, row.per_node),
        "trainer.balance_batch": True,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": row.max_tokens,
        f"{actor}.ppo_mini_batch_size": row.prompts,
        f"{actor}.use_kl_loss": row.passes > 1,  # by a reference model, which is a pass without backward
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": row.rollouts,
        **row.generation(
            "trainer.total_training_steps",
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            "actor_rollout_ref.rollout.gpu_memory_utilization",
        ),
    }


def sft_settings(row: ChosenRow) -> Settings:
    return {
        "model.path": row.weights,
        **_base(row, "model", "engine"),
        "data.train_batch_size": row.samples,
        "data.max_length": row.longest or row.max_tokens,
        "data.use_dynamic_bsz": True,
        "data.max_token_len_per_gpu": row.max_tokens,
        "engine.strategy": "fsdp2",
    }


def _base(row: ChosenRow, model: str, engine: str) -> Settings:
    settings: Settings = {
        **row.whole_epochs("trainer.total_epochs"),
        "data.train_files": f"{DATA}/train.parquet",
        "trainer.logger": "console",
        f"{model}.enable_gradient_checkpointing": row.recipe.recomputes,
        f"{engine}.fsdp_size": row.per_node if row.hybrid else -1,
    }
    if row.attention != "fa2":  # which is its own choice
        settings |= row.kernel(f"+{model}.override_config.attn_implementation")
    if row.chunked:
        settings[f"{model}.use_fused_kernels"] = True
    if row.recipe.offload:
        settings[f"{engine}.optimizer_offload"] = True
    if row.recipe.lora:
        settings[f"{model}.lora_rank"] = row.recipe.lora
    return settings


def deal(work: Work) -> Deal:
    """The right one to know what verl's own balancing comes to at other lengths and models than its constants'."""
    return difference(work, TOKEN, 1)


def deal_in_shares(work: Work) -> Deal:
    """The right one to know what verl's SFT comes to, which balances the microbatches of each device alone."""
    tokens = work.tokens.tolist()
    weights = [float(TOKEN * length + length * length) for length in tokens]
    groups = [share.tolist() for share in np.array_split(np.arange(len(tokens)), work.devices)]
    return Deal(_in_microbatches(groups, weights, tokens, work.max_tokens))


def difference(work: Work, linear: int, quadratic: int) -> Deal:
    """By such weights over devices, as many samples on each, then over the microbatches of each, as many on all."""
    tokens = work.tokens.tolist()
    order = sorted(range(len(tokens)), key=lambda i: (-tokens[i], i))
    lengths = [tokens[i] for i in order]
    weights = [float(linear * length + quadratic * length * length) for length in lengths]
    groups = as_lists(differencing_equal(np.array(weights), work.devices), len(weights))
    rows = _in_microbatches(groups, weights, lengths, work.max_tokens)
    return Deal([[[order[i] for i in row] for row in of_device] for of_device in rows])


def deal_once(step: Sequence[Schedule], devices: int, limit: int) -> list[Schedule]:
    """All samples of a step dealt at once, of which each device cuts its own into the updates.

    verl orders them from the lightest up and down again, which is meant for pipelines and makes updates of like
    samples. In an update each device has as many microbatches, of balanced weight, the heaviest in the middle.
    """
    lengths = np.array([n for schedule in step for n in schedule.lengths], np.int64)
    weights = (TOKEN * lengths + lengths**2).astype(np.float64).tolist()
    heavy = sorted(range(len(lengths)), key=lambda i: -weights[i])
    parts = as_lists(differencing_equal(np.array([weights[i] for i in heavy]), devices), len(heavy))
    rising = [sorted((heavy[i] for i in part), key=lambda i: (weights[i], i)) for part in parts]
    shares = [share[::2] + share[1::2][::-1] for share in rising]
    tokens, each = lengths.tolist(), len(lengths) // devices // len(step)
    schedules = []
    for update in range(len(step)):
        own = [share[update * each : (update + 1) * each] for share in shares]
        place = {sample: at for at, sample in enumerate(i for share in own for i in share)}
        turned = [[*rows[::2][::-1], *rows[1::2]] for rows in _in_microbatches(own, weights, tokens, limit)]
        deal = tuple(tuple(tuple(place[i] for i in row) for row in rows) for rows in turned)
        schedules.append(Schedule.of(tuple(tokens[i] for i in place), deal))
    return schedules


def _in_microbatches(groups: Rows, weights: list[float], lengths: list[int], limit: int) -> list[Rows]:
    """Each group's samples in as many, of balanced weight: the fewest that the limit lets all of them have."""
    count = max(fewest(group, lengths, limit) for group in groups)
    while None in (rows := [pack(group, weights, lengths, limit, count) for group in groups]):
        count += 1
    return [of_group or [] for of_group in rows]


VERL = Neighbour(
    "verl",
    "hydra",
    {
        SFT: Entry(
            f"{TORCHRUN}-m verl.trainer.sft_trainer",
            sft_settings,
            "verl 0.9.1, verl/trainer/config/sft_trainer_engine.yaml",
        ),
        GRPO: Entry(
            "python3 -m verl.trainer.main_ppo", grpo_settings, "verl 0.9.1, verl/trainer/config/ppo_trainer.yaml"
        ),
    },
    COLLECTIVE,
    (
        Rule("verl", f"Karmarkar-Karp over {TOKEN} n + n^2, for devices and for microbatches", kinds=(GRPO,)),
        Rule(
            "verl-sft", f"as they come to devices, Karmarkar-Karp over {TOKEN} n + n^2 for microbatches", kinds=(SFT,)
        ),
    ),
    frozenset({"hybrid", "on_host", "rank", "chunked", "policy", "attention"}),
    balancers=(
        Balancer("verl", deal, "Karmarkar-Karp by verl's constants", by_cost=False),
        Balancer("verl-sft", deal_in_shares, "verl's SFT: the same for microbatches alone", by_cost=False, even=False),
    ),
    assumes=PLAIN,
)
