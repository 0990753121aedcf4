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
    if not isinstance(first := dataset[0], dict) or "input_ids" not in first:
        raise InputError("a dataset without 'input_ids'", fix="define lengths(dataset) on your trainer")
    return [len(dataset[i]["input_ids"]) for i in range(len(dataset))]
