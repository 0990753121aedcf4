"""What there is of a batch that a loss may be a mean over."""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

IGNORED = -100  # a label that no loss counts


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one microbatch, or of many together."""

    samples: float = 0.0
    labels: float = 0.0
    next_labels: float = 0.0  # labels without the first of each row, which nothing predicts
    tokens: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


NOTHING = Counts()


def counts_of(batch: Any, samples: int) -> Counts:
    """Of a batch that was made of so many samples."""
    if not samples or not isinstance(batch, Mapping):
        return Counts(samples)
    return Counts(samples, _counted(batch, 0), _counted(batch, 1), _tokens(batch))


def _counted(batch: Mapping[str, Any], start: int) -> float:
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.dim() <= start:
        return 0.0
    return float((labels[..., start:] != IGNORED).sum())


def _tokens(batch: Mapping[str, Any]) -> float:
    mask, ids = batch.get("attention_mask"), batch.get("input_ids")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return float(mask.sum())
    return float(ids.numel()) if isinstance(ids, Tensor) else 0.0


def together(every: Iterable[Counts]) -> Counts:
    return sum(every, NOTHING)


def over_ranks(values: Iterable[float], device: torch.device) -> list[float]:
    """The sum over all ranks of each of them."""
    total = torch.tensor([*values], dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(total)
    return [float(value) for value in total.tolist()]
