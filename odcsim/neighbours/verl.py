"""verl: GRPO and SFT; its rules are those of verl/utils/seqlen_balancing.py at 1dda039.

Karmarkar-Karp over devices, as many samples on each, by 24,576 L + L^2 ("calibrated for a 7B model"); then over the
microbatches of each device, as many as the fullest one's tokens need. A step's samples are dealt at once, for all of
its updates. SFT has the second half alone: devices get samples as they come (0.9.1: sft_trainer.py).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.balance.pack import fewest, pack
from odcsim.balance.partition import as_lists, differencing_equal
from odcsim.errors import InputError
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.neighbour import (
    COLLECTIVE,
    CUTS,
    DATA,
    ENDS,
    IN_BATCHES,
    IN_PADDED,
    KERNEL_NAMES,
    PLAIN,
    TORCHRUN,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    start_row,
)
from odcsim.neighbours.packing import Rows
from odcsim.neighbours.values import RunEnds, Values
from odcsim.schedule import Schedule
from odcsim.trace import GRPO, SFT

TOKEN = 24_576  # its weight of a token where a squared one is 1, for every model
AS_THEY_COME = "verl-sft"  # to devices; of rollouts where trainer.balance_batch is off


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
        "trainer.balance_batch": row.balancer != AS_THEY_COME,
        f"{actor}.strategy": "fsdp2",
        **_microbatches(row, actor, "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu"),
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
        **_microbatches(row, "data", "micro_batch_size_per_gpu", "max_token_len_per_gpu"),
        "engine.strategy": "fsdp2",
    }


def _microbatches(row: ChosenRow, within: str, count: str, limit: str) -> Settings:
    """By tokens, of all GPUs that share a sequence together; or so many samples in each."""
    if row.each:
        return {f"{within}.use_dynamic_bsz": False, f"{within}.{count}": row.each}
    return {f"{within}.use_dynamic_bsz": True, f"{within}.{limit}": row.max_tokens // row.recipe.context}


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


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
# Sequences that GPUs share by Ulysses' all-to-alls (arXiv 2309.14509) are priced as by context parallelism.
ULYSSES = "Ulysses' sequence parallelism is priced as context parallelism, which moves keys and values"


def read_grpo(values: Values, launch: Launcher) -> ChosenRow:
    """What belongs to the actor: `ppo_mini_batch_size` counts prompts, and a limit of tokens is for those that share a
    sequence."""
    launch = _read_launch(values, launch, ("trainer.nnodes", "trainer.n_gpus_per_node"))
    row = _read_model(values, launch, "actor_rollout_ref.model", ACTOR, f"{ACTOR}.fsdp_config")
    each = values.whole(f"{ROLLOUT}.n", 1)
    prompts, batch = values.whole(f"{ACTOR}.ppo_mini_batch_size", 256), values.whole("data.train_batch_size", 1024)
    answer, prompt = values.whole("data.max_response_length", 512), values.whole("data.max_prompt_length", 0, 0)
    row = _read_microbatches(
        values,
        row,
        min(prompts, batch) * each,
        ACTOR,
        "ppo_micro_batch_size",
        "ppo_max_token_len_per_gpu",
        16_384,
        False,
    )
    if not values.flag("trainer.balance_batch", True) and row.balancer == "verl":
        row = replace(row, balancer=AS_THEY_COME)
    reference = values.flag(f"{ACTOR}.use_kl_loss") or values.flag("algorithm.use_kl_in_reward")
    return replace(
        row,
        kind=GRPO,
        rollouts=each,
        updates=max(1, batch // prompts) * values.whole(f"{ACTOR}.ppo_epochs", 1),
        passes=1 + reference,
        critic=values.text("algorithm.adv_estimator", "gae") == "gae",
        answer=answer,
        prompt=prompt,
        longest=answer + (prompt or 512),
        engine_gpus=values.whole(f"{ROLLOUT}.tensor_model_parallel_size", 2),
        memory_share=values.number(f"{ROLLOUT}.gpu_memory_utilization", 0.5),
        steps=values.whole("trainer.total_training_steps", 0, 0),
        data=_first_file(values),
    )


def read_sft(values: Values, launch: Launcher) -> ChosenRow:
    """By its engine's names, or those of the trainer before it."""
    launch = _read_launch(values, launch, ("trainer.nnodes", "trainer.n_gpus_per_node"))
    row = _read_model(values, launch, "model", "engine", "engine")
    batch, limit = values.whole("data.train_batch_size", 256), values.whole("data.max_length", 1024)
    row = _read_microbatches(
        values, row, batch, "data", "micro_batch_size_per_gpu", "max_token_len_per_gpu", 8192, True
    )
    ends = values.text("data.truncation", "error") == "error"
    row = replace(row, balancer=AS_THEY_COME if row.balancer == "verl" else row.balancer, longest=limit)
    return replace(row, cutting=ENDS if ends else CUTS, data=_first_file(values))


def _read_launch(values: Values, launch: Launcher, names: tuple[str, str]) -> Launcher:
    machines, each = (values.whole(name, 0, 0) for name in names)
    return launch if launch.gpus else replace(launch, machines=machines or 1, per_machine=each)


def _read_model(values: Values, launch: Launcher, model: str, engine: str, shards: str) -> ChosenRow:
    """Weights, kernels and shards, of what one rank holds; nothing is dealt yet."""
    engines = [values.text(name) for name in (f"{engine}.strategy", "model_engine", "engine", "config_name")]
    values.get("optim")  # of which group of its files its settings are
    if any("megatron" in name for name in engines):
        problem = "it runs Megatron"
        raise InputError(problem, where=values.where, fix="its FSDP alone is priced: ask with strategy=fsdp2")
    groups = (f"{engine}.ulysses_sequence_parallel_size", f"{shards}.ulysses_sequence_parallel_size",
              "ulysses_sequence_parallel_size")  # fmt: skip
    each, size = values.whole(groups, 1), values.whole(f"{shards}.fsdp_size", -1, -1)
    if each > 1:
        values.note(ULYSSES)
    copies = launch.gpus // size if 0 < size < launch.gpus else 1
    host = any(values.flag(f"{shards}.{name}") for name in ("optimizer_offload", "offload_policy"))
    values.flag(f"{shards}.param_offload")
    fused = values.flag(f"{model}.use_fused_kernels") or values.flag(f"{engine}.use_fused_kernels")
    if values.flag(f"{model}.use_liger"):
        values.note(f"{model}.use_liger: of Liger's kernels none is priced but the loss of use_fused_kernels")
    words = {
        **PLAIN,
        "sync": "deferred" if values.flag(f"{shards}.use_no_sync_for_gradient_accumulation") else "collective",
        "recompute": "full" if values.flag(f"{model}.enable_gradient_checkpointing", True) else "none",
        "lora": values.whole(f"{model}.lora_rank", 0, 0),
        **({"loss": "chunked"} if fused else {}),
    }
    launch = replace(
        launch.with_context(each, values.where), sharding="hybrid" if copies > 1 else "full", offload=host,
        reshard=values.flag(f"{shards}.reshard_after_forward", True),
        per_machine=size if copies > 1 else launch.per_machine,
    )  # fmt: skip
    kernel = KERNEL_NAMES.get(values.text(f"{model}.override_config.attn_implementation", "flash_attention_2"), "fa2")
    row = start_row(values, launch, words | {"attention": kernel}, balancer="", minibatch=1, kernel="")
    path = values.first((f"{model}.path", f"{model}.partial_pretrain"), "")
    epochs = values.number("trainer.total_epochs", 0.0) or None
    return replace(row, attention=kernel, model=str(path), epochs=epochs)


def _read_microbatches(
    values: Values, row: ChosenRow, batch: int, within: str, count: str, limit: str, most: int, dynamic: bool
) -> ChosenRow:
    """Of `batch` samples on all devices: by a limit of tokens, or so many in each, flattened or padded."""
    if batch % row.workers:
        problem, fix = f"{batch} samples of a step on {row.workers} ranks", "it ends at once: give a multiple"
        raise RunEnds(problem, where=values.where, fix=fix)
    share = batch // row.workers
    if values.flag(f"{within}.use_dynamic_bsz", dynamic):
        for name in (f"{within}.{count}_per_gpu", f"{within}.{count}"):
            if name in values:
                values.note(f"{name} does nothing beside use_dynamic_bsz")
        tokens = values.whole(f"{within}.{limit}", most) * row.recipe.context
        return replace(row, balancer="verl", minibatch=share, max_tokens=tokens, microbatches=1.0)
    names = f"{within}.{count}_per_gpu", f"{within}.{count}", f"{within}.micro_batch_size_per_gpu"
    if not (every := values.whole(names, 0, 0)):
        fix = f"give {within}.{count}_per_gpu, or use_dynamic_bsz"
        raise InputError(f"says nothing of a microbatch: {within}.{count}_per_gpu", where=values.where, fix=fix)
    each = min(every, share)
    model = "model" if within == "data" else "actor_rollout_ref.model"
    flat = values.flag(f"{model}.use_remove_padding", True) or values.text("data.pad_mode") == "no_padding"
    rule = IN_BATCHES if flat else IN_PADDED
    return replace(row, balancer=rule, minibatch=share, each=each, microbatches=share / each)


def _first_file(values: Values) -> str:
    found = values.get("data.train_files", "")
    return str(found[0] if isinstance(found, list) and found else found)


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
            read_sft,
            ("verl.trainer.sft_trainer", "verl.trainer.fsdp_sft_trainer"),
            (
                "data.train_batch_size",
                "data.micro_batch_size_per_gpu",
                "model.partial_pretrain",
                "engine",
                "data.max_length",
            ),
            ("engine", "data.max_length", "model.partial_pretrain"),
        ),
        GRPO: Entry(
            "python3 -m verl.trainer.main_ppo",
            grpo_settings,
            "verl 0.9.1, verl/trainer/config/ppo_trainer.yaml",
            read_grpo,
            ("verl.trainer.main_ppo", "main_dapo", "main_ppo.py"),
            ("data.train_batch_size", "actor_rollout_ref", "algorithm", "trainer.nnodes"),
            ("actor_rollout_ref", "algorithm"),
        ),
    },
    COLLECTIVE,
    (
        Rule("verl", f"Karmarkar-Karp over {TOKEN} n + n^2, for devices and for microbatches", kinds=(GRPO,)),
        Rule(
            AS_THEY_COME, f"as they come to devices, Karmarkar-Karp over {TOKEN} n + n^2 for microbatches", kinds=(SFT,)
        ),
    ),
    frozenset({"hybrid", "on_host", "rank", "chunked", "policy", "attention"}),
    balancers=(
        Balancer("verl", deal, "Karmarkar-Karp by verl's constants", by_cost=False),
        Balancer(
            AS_THEY_COME, deal_in_shares, "verl's SFT: the same for microbatches alone", by_cost=False, even=False
        ),
    ),
    assumes=PLAIN,
)
