"""Settings of a Trainer under which on-demand would train otherwise, or not at all: refused, with the way out."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from odcsim.errors import InputError


def check(trainer: Any) -> None:
    """Before anything is prepared for training."""
    for problem, fix in _problems(trainer):
        raise InputError(problem, where=type(trainer).__name__, fix=fix)


def _problems(trainer: Any) -> Iterator[tuple[str, str]]:
    own = trainer.args
    if own.world_size > 1 and not own.average_tokens_across_devices:
        told = "average_tokens_across_devices is off, so that losses depend on which device runs what"
        yield told, "leave it on, as it comes"
    if (strategy := str(getattr(own.train_sampling_strategy, "value", own.train_sampling_strategy))) != "random":
        yield f"train_sampling_strategy '{strategy}' beside a plan of its own", "leave it 'random'"
    if own.fp16:
        yield "fp16, whose scaler expects gradients that are not finite", "use bf16"
    if own.auto_find_batch_size:
        told = "auto_find_batch_size, with which one device alone would start again"
        yield told, "set max_tokens to what fits"
    if trainer.train_dataset is not None and not hasattr(trainer.train_dataset, "__len__"):
        yield "a dataset that does not know its length", "use one with __len__ and __getitem__"
    spread = {name: getattr(trainer, f"get_{name}_size")() for name in ("tp", "cp", "sp")}
    if any(size > 1 for size in spread.values()):
        told = ", ".join(f"{name} {size}" for name, size in spread.items() if size > 1)
        yield f"samples that several devices run together ({told})", "use data parallelism alone"
    if hasattr(trainer, "_generate_and_score_completions") and not hasattr(trainer, "rollouts"):
        yield "samples that are made while training", "put OnDemandRollouts in front instead of OnDemandMixin"
    yield from _of_preferences(trainer)


MIXED = ("aot", "aot_unpaired", "bco_pair", "sft")  # losses of TRL's in which a pair is counted by those beside it


def _of_preferences(trainer: Any) -> Iterator[tuple[str, str]]:
    """What a DPOTrainer of TRL's knows."""
    own = trainer.args
    losses = getattr(own, "loss_type", None) or ()
    if mixed := [loss for loss in ([losses] if isinstance(losses, str) else losses) if loss in MIXED]:
        yield (
            f"loss_type '{mixed[0]}', in which pairs of a microbatch depend on each other",
            "use 'sigmoid' or the like",
        )
    if getattr(own, "sync_ref_model", False):
        yield "sync_ref_model, which changes weights that others read", "leave the reference as it is"
    if getattr(trainer, "aux_loss_enabled", False):
        yield "a router's loss, which depends on how samples are packed", "leave output_router_logits off"


def check_rollouts(trainer: Any) -> None:
    """A GRPOTrainer or RLOOTrainer of TRL's."""
    for problem, fix in _of_rollouts(trainer):
        raise InputError(problem, where=type(trainer).__name__, fix=fix)


def _of_rollouts(trainer: Any) -> Iterator[tuple[str, str]]:
    own = trainer.args
    if own.steps_per_generation % own.gradient_accumulation_steps:
        told = f"steps_per_generation {own.steps_per_generation} in the middle of an optimizer step"
        yield told, f"make it a multiple of gradient_accumulation_steps {own.gradient_accumulation_steps}"
    if getattr(own, "loss_type", None) == "bnpo":
        yield "loss_type 'bnpo', in which answers of a microbatch depend on each other", "use 'dapo' or 'grpo'"
    if getattr(trainer, "_entropy_bonus_enabled", False) or getattr(trainer, "top_entropy_quantile", 1.0) < 1.0:
        fix = "leave entropy_coef at 0 and top_entropy_quantile at 1"
        yield "entropies of a microbatch in its loss, so that answers depend on each other", fix


def check_answers(answers: dict[str, Any]) -> None:
    """Tensors with a row for each answer, or one value for all."""
    if strange := sorted({*answers} & {"pixel_values", "image_grid_thw", "num_images", "token_type_ids"}):
        raise InputError(f"answers to images ({', '.join(strange)})", fix="train on text")


def check_model(model: nn.Module) -> None:
    """As the Trainer has prepared it."""
    if not isinstance(model, FSDPModule):
        fix = "set fsdp=True and fsdp_config={'version': 2}, or fsdp_version: 2 in accelerate's config file"
        raise InputError(f"{type(model).__name__} is not sharded by FSDP2", fix=fix)


def pads(collate: Any) -> bool:
    """Whether it makes samples as long as the longest beside them."""
    return not (getattr(collate, "padding_free", False) or type(collate).__name__ == "DataCollatorWithFlattening")


def lengths_of(dataset: Any, column: str) -> list[int]:
    names = getattr(dataset, "column_names", None) or ()
    if column in names:
        return [int(length) for length in dataset[column]]
    if "input_ids" in names:
        return [len(ids) for ids in dataset["input_ids"]]
    if {"prompt_ids", "chosen_ids", "rejected_ids"} <= set(names):
        pairs = zip(dataset["prompt_ids"], dataset["chosen_ids"], dataset["rejected_ids"], strict=True)
        return [2 * (len(prompt) + max(len(better), len(worse))) for prompt, better, worse in pairs]
    if not isinstance(first := dataset[0], dict) or "input_ids" not in first:
        raise InputError("a dataset without 'input_ids'", fix="define lengths(dataset) on your trainer")
    return [len(dataset[i]["input_ids"]) for i in range(len(dataset))]
