"""Samples of unlike lengths, with labels of every kind, and what makes batches of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tiny_trainers import IGNORED, WORDS, words
from torch import Tensor
from torch.utils.data import Dataset

COUNT = 24
FILLS = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED, "token_type_ids": 0}
Draw = np.random.Generator


class Samples(Dataset):
    """Random tokens, each with what `label` makes of them."""

    def __init__(self, label: Callable[[list[int], Draw], dict[str, Any]], count: int = COUNT) -> None:
        rng = np.random.default_rng(2)
        self.every = []
        for length in np.random.default_rng(1).integers(4, 60, count).tolist():
            ids = rng.integers(1, WORDS - 1, length).tolist()
            self.every.append({"input_ids": ids, "attention_mask": [1] * length} | label(ids, rng))

    def __len__(self) -> int:
        return len(self.every)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.every[i]


def spoken() -> Samples:
    """The first third of a text is a prompt, which no loss counts."""
    return Samples(lambda ids, _: {"labels": [IGNORED] * (len(ids) // 3) + ids[len(ids) // 3 :]})


def numbered() -> Samples:
    """Without labels."""
    return Samples(lambda *_: {})


def named(make: Callable[[list[int], Draw], Any]) -> Callable[[], Samples]:
    """Each with labels."""
    return lambda: Samples(lambda ids, rng: {"labels": make(ids, rng)})


def tags(ids: list[int], rng: Draw) -> list[int]:
    """A label for most tokens."""
    return [IGNORED if rng.random() < 0.3 else int(rng.integers(3)) for _ in ids]


def spans() -> Samples:
    def drawn(ids: list[int], rng: Draw) -> dict[str, int]:
        start, end = sorted(rng.integers(0, len(ids), 2).tolist())
        return {"start_positions": start, "end_positions": end}

    return Samples(drawn)


def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch of them, filled up where they have a value for each token."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    return {name: torch.tensor([_filled(sample, name, longest) for sample in samples]) for name in samples[0]}


def _filled(sample: dict[str, Any], name: str, longest: int) -> Any:
    value = sample[name]
    per_token = isinstance(value, list) and name in FILLS and isinstance(value[0], int)
    return value + [FILLS[name]] * (longest - len(value)) if per_token else value


def all_as_long(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """As `padding="max_length"` has it."""
    others = {name: value for name, value in samples[0].items() if name not in FILLS}
    longest = others | {"input_ids": [0] * 60, "attention_mask": [0] * 60}
    return {name: value[:-1] for name, value in collate([*samples, longest]).items()}


def masked_anew() -> Callable[..., Any]:
    """Hides other tokens each time, by the last number that its tokenizer knows."""
    from transformers import DataCollatorForLanguageModeling

    known = words()
    known.mask_token = str(WORDS - 1)
    return DataCollatorForLanguageModeling(known, mlm_probability=0.3)
