"""A trainer as somebody writes it, and what it trains on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tiny_trainers import llama
from torch import nn
from transformers import Trainer, TrainingArguments

from losses.samples import collate, spoken

LIMITS = (64, 480)  # tokens of a microbatch: one sample or a few, and all that a device has


@dataclass(frozen=True)
class Kind:
    """`trainer`: without the mixin; `said`: what the class with the mixin says besides; `more`: what else the trainer
    is made with; `layer`: what FSDP2 shards; `limits`: of a microbatch's tokens; `as_run`: the whole minibatch is what
    devices ran, since a collate function draws; `declared`: the gradient depends on the cut, as the user has said that
    it may; `rollouts`: samples are made while training, so that it is held against stock training; `seen`: what the
    trainer has counted of its microbatches."""

    trainer: type = Trainer
    model: Callable[[], nn.Module] = llama
    data: Callable[[], Any] = spoken
    collate: Callable[..., Any] | None = collate
    config: type = TrainingArguments
    arguments: dict[str, Any] = field(default_factory=dict)
    more: Callable[[], dict[str, Any]] = dict
    said: dict[str, Any] = field(default_factory=dict)
    layer: str = "LlamaDecoderLayer"
    limits: tuple[int, ...] = LIMITS
    as_run: bool = False
    declared: bool = False
    rollouts: bool = False
    seen: Callable[[Any], Any] | None = None
    bound: float = 1e-5


def of_llama(model: Callable[[], nn.Module], data: Callable[[], Any], **how: Any) -> Kind:
    return Kind(model=model, data=data, **how)


def of_bert(model: Callable[[], nn.Module], data: Callable[[], Any], **how: Any) -> Kind:
    return Kind(model=model, data=data, layer="BertLayer", **how)
