"""One microbatch as tensors: packed samples, each token with its target and its loss weight.

Weights are normalized over the whole minibatch, never over a microbatch, so that losses and gradients of all
microbatches on all ranks are simply added up, and the result does not depend on which sample ran where.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from odcsim.errors import InputError, nearest
from odcsim.schedule import Schedule

NO_TARGET = -100


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The packed samples of one microbatch, end to end."""

    tokens: Tensor  # int64 [T]
    targets: Tensor  # int64 [T]: the sample's next token; NO_TARGET if there is none or it has no loss
    weights: Tensor  # float64 [T]: weight of the loss at each position; zero without a target
    lengths: tuple[int, ...]  # of the samples, in order

    def to(self, device: torch.device | str) -> "Packed":
        return Packed(self.tokens.to(device), self.targets.to(device), self.weights.to(device), self.lengths)


def pack(samples: Sequence[Tensor], weights: Sequence[Tensor]) -> Packed:
    """Pack samples end to end, without padding.

    A weight belongs to the position that predicts: one before the predicted token. So a sample's last position predicts
    nothing, and its weight is ignored.
    """
    if not samples:
        raise InputError("a microbatch without samples", fix="a device without samples runs no microbatch")
    lengths = tuple(sample.numel() for sample in samples)
    if lengths != (given := tuple(weight.numel() for weight in weights)):
        raise InputError(f"samples of {lengths} tokens with {given} weights", fix="give one weight per token")
    if 0 in lengths:
        raise InputError(f"sample {lengths.index(0)} of the microbatch is empty", fix="leave it out")
    tokens = torch.cat([sample.reshape(-1).to(torch.int64) for sample in samples])
    weighed = torch.cat([weight.reshape(-1).to(torch.float64) for weight in weights])
    last = torch.tensor(lengths, device=tokens.device).cumsum(0) - 1
    weighed[last] = 0.0
    targets = tokens.roll(-1).where(weighed != 0, NO_TARGET)
    return Packed(tokens, targets, weighed, lengths)


def token_mean(loss_tokens: Sequence[int]) -> tuple[float, ...]:
    """Return the weight of each sample's loss tokens, so that the sum is the mean over the minibatch's loss tokens."""
    total = sum(loss_tokens)
    return tuple(1 / total if own else 0.0 for own in loss_tokens)


def sample_mean(loss_tokens: Sequence[int]) -> tuple[float, ...]:
    """Return the weight of each sample's loss tokens, so that the sum is the mean over samples of each sample's mean.

    Samples without loss tokens are not counted.
    """
    carrying = sum(1 for own in loss_tokens if own)
    return tuple(1 / (carrying * own) if own else 0.0 for own in loss_tokens)


NORMALISE = {"token-mean": token_mean, "sample-mean": sample_mean}


def loss_tokens(schedule: Schedule) -> tuple[int, ...]:
    """Count each sample's predicted tokens with loss: its last `loss` ones, or all but the first."""
    loss = schedule.loss or schedule.lengths
    return tuple(min(own, length - 1) for own, length in zip(loss, schedule.lengths, strict=True))


def synthetic(
    schedule: Schedule, microbatch: Iterable[int], vocab: int, seed: int, normalise: str = "token-mean"
) -> Packed:
    """Return random tokens for one microbatch. A sample's tokens depend on the seed and its id only, not on where it
    runs."""
    if normalise not in NORMALISE:
        raise InputError(f"unknown normalisation '{normalise}'", fix=nearest(normalise, list(NORMALISE)))
    counts = loss_tokens(schedule)
    each = NORMALISE[normalise](counts)
    samples, weights = [], []
    for i in microbatch:
        length = schedule.lengths[i]
        identity = schedule.samples[i] if schedule.samples else i
        samples.append(torch.from_numpy(np.random.default_rng((seed, identity)).integers(0, vocab, length)))
        weight = torch.zeros(length, dtype=torch.float64)
        weight[length - 1 - counts[i] : length - 1] = each[i]
        weights.append(weight)
    return pack(samples, weights)
