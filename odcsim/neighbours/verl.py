"""verl: reinforcement learning; its rules are those of verl/utils/seqlen_balancing.py at 1dda039.

Karmarkar-Karp over devices, as many samples on each, by 24,576 L + L^2 ("calibrated for a 7B model"); then over the
microbatches of each device, as many as the fullest one's tokens need. A step's samples are dealt at once, for all of
its updates.
"""

from collections.abc import Sequence

import numpy as np

from odcsim.balance.balancer import Deal, Work
from odcsim.balance.pack import fewest, pack
from odcsim.balance.partition import differencing_equal, listed
from odcsim.neighbours.neighbour import COLLECTIVE, PLAIN, ChosenRow, Neighbour, Settings, carried
from odcsim.schedule import Schedule

TOKEN = 24_576  # its weight of a token where a squared one is 1, for every model


def settings(row: ChosenRow) -> Settings:
    """Its minibatch is of prompts, each of which stands for rollout.n samples; a batch that is as large is one step."""
    actor, model = "actor_rollout_ref.actor", "actor_rollout_ref.model"
    settings: Settings = {
        **carried(row, "actor_rollout_ref.model.path", "trainer.total_epochs"),
        "trainer.nnodes": row.nodes,
        "trainer.n_gpus_per_node": row.per_node,
        "trainer.balance_batch": True,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": row.max_tokens,
        "data.train_batch_size": row.prompts,
        f"{actor}.ppo_mini_batch_size": row.prompts,
        "actor_rollout_ref.rollout.n": row.rollouts,
        f"{actor}.fsdp_config.fsdp_size": row.per_node if row.hybrid else -1,
        f"{model}.enable_gradient_checkpointing": row.recipe.recompute != "none",
    }
    if row.recipe.offload:
        settings[f"{actor}.fsdp_config.optimizer_offload"] = True
    if row.recipe.lora:
        settings[f"{model}.lora_rank"] = row.recipe.lora
    return settings


def deal(work: Work) -> Deal:
    """The right one to know what verl's own balancing comes to at other lengths and models than its constants'."""
    return differenced(work, TOKEN, 1)


def differenced(work: Work, linear: int, quadratic: int) -> Deal:
    """By such weights over devices, as many samples on each, then over the microbatches of each, as many on all."""
    tokens = work.tokens.tolist()
    order = sorted(range(len(tokens)), key=lambda i: (-tokens[i], i))
    lengths = [tokens[i] for i in order]
    weights = [float(linear * length + quadratic * length * length) for length in lengths]
    groups = listed(differencing_equal(np.array(weights), work.devices), len(weights))
    count = max(fewest(group, lengths, work.max_tokens) for group in groups)
    while None in (packed := [pack(group, weights, lengths, work.max_tokens, count) for group in groups]):
        count += 1
    return Deal([[[order[i] for i in row] for row in rows or []] for rows in packed])


def dealt_once(step: Sequence[Schedule], devices: int, limit: int) -> list[Schedule]:
    """All samples of a step dealt at once, of which each device cuts its own into the updates.

    verl orders them from the lightest up and down again, which is meant for pipelines and makes updates of like
    samples.
    """
    lengths = np.array([n for schedule in step for n in schedule.lengths], np.int64)
    updates = len(step)
    weights = (TOKEN * lengths + lengths**2).astype(np.float64).tolist()
    heavy = sorted(range(len(lengths)), key=lambda i: -weights[i])
    parts = listed(differencing_equal(np.array([weights[i] for i in heavy]), devices), len(heavy))
    shares = [_up_and_down(sorted((heavy[i] for i in part), key=lambda i: (weights[i], i))) for part in parts]
    each = len(lengths) // devices // updates
    return [
        _packed([share[u * each : (u + 1) * each] for share in shares], lengths.tolist(), weights, limit)
        for u in range(updates)
    ]


def _up_and_down(rising: list[int]) -> list[int]:
    return rising[::2] + rising[1::2][::-1]


def _packed(shares: list[list[int]], lengths: list[int], weights: list[float], limit: int) -> Schedule:
    """As many microbatches on each device, of balanced weight, the heaviest in the middle."""
    count = max(fewest(share, lengths, limit) for share in shares)
    parts = [pack(share, weights, lengths, limit, count) for share in shares]
    while any(part is None for part in parts):
        count += 1
        parts = [pack(share, weights, lengths, limit, count) for share in shares]
    place = {sample: at for at, sample in enumerate(i for share in shares for i in share)}
    turned = ([*(part or [])[::2][::-1], *(part or [])[1::2]] for part in parts)
    devices = tuple(tuple(tuple(place[i] for i in mb) for mb in part) for part in turned)
    return Schedule.of(tuple(lengths[i] for i in place), devices)


VERL = Neighbour(
    "verl",
    "hydra",
    "verl 0.9.1, verl/trainer/config/ppo_trainer.yaml",
    settings,
    COLLECTIVE,
    f"Karmarkar-Karp over {TOKEN} n + n^2, for devices and for microbatches",
    frozenset({"hybrid", "on_host", "rank"}),
    rollouts=True,
    deal=deal,
    help="Karmarkar-Karp by verl's constants",
    assumes=PLAIN,
)
