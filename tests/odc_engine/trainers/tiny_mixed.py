"""Trainers of transformers and of TRL over the tiny model, stock or with a mixin in front."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from datasets.table import InMemoryTable
from tiny_trainers import Texts, arguments, collate, llama, words
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer

from odc_engine.trainers import BalancedMixin, OnDemandMixin, OnDemandRollouts

MIXINS = {"stock": (), "on demand": (OnDemandMixin,), "balanced": (BalancedMixin,), "answers": (OnDemandRollouts,)}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}


def mixed(name: str, base: type = Trainer, **said: Any) -> type:
    return type("Mine", (*MIXINS[name], base), {"max_tokens": 64} | said)


def training(kind: Any, rank: int, folder: Path, samples: int = 24, *callbacks: Any, **changed: Any) -> Any:
    """`kind`: a class, or a name of `MIXINS`."""
    own = arguments(rank, folder, **changed)
    texts = {"train_dataset": Texts(samples), "data_collator": collate}
    if "eval_strategy" in changed:
        texts["eval_dataset"] = Texts(9)
    kind = mixed(kind) if isinstance(kind, str) else kind
    return kind(model=llama(), args=own, callbacks=[*callbacks], **texts)


def in_memory(**columns: Any) -> Dataset:
    return Dataset(InMemoryTable.from_pydict(columns), fingerprint=f"{[*columns]} {len(columns.popitem()[1])}")


def reward(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(completion.split()))) for completion in completions]


def answering(kind: Any, rank: int, folder: Path, prompts: list[str], config: Any = GRPOConfig, **changed: Any) -> Any:
    """A trainer that generates answers. `kind`: a class, or a name of `MIXINS`."""
    usual = {"bf16": False, "num_generations": 4, "max_completion_length": 24}
    own = arguments(rank, folder, config, **usual | changed)
    given = {"train_dataset": in_memory(prompt=prompts), "processing_class": words(), "reward_funcs": reward}
    kind = mixed(kind, GRPOTrainer, max_tokens=48) if isinstance(kind, str) else kind
    return kind(model=llama(), args=own, **given)
