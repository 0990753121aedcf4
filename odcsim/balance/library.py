"""Balancing for somebody else's trainer: from lengths to index lists, and what each loss counts for.

    plan = odcsim.balance.plan(lengths, devices=8, max_tokens=65536)
    for part, weight in zip(plan.devices[rank], plan.mean_weights(averaged=True)[rank]):
        (weight * mean_loss(model, [samples[i] for i in part])).backward()

A pure function: every device that calls it with the same lengths has the same plan, or the same error, without a word
between them. Nothing is repeated, dropped or padded, and no error falls back on another plan.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from odcsim.balance import Assignment, balance
from odcsim.errors import InputError
from odcsim.support.values import as_many, numbers, refuse, whole_numbers

# Tokens from which on a sample's attention costs more than all else: 50,004 in FLOPs for llama-3.1-8b, and 20K to 97K
# for dense models of 0.5B to 72B that attend to everything (a test computes them). Mixtures of experts have less.
EVEN = 50_000


@dataclass(frozen=True, slots=True)
class Plan:
    """One minibatch. `devices[d][m]` holds the places in the lengths that device d runs in its m-th microbatch.

    An empty microbatch `()` has nobody to run; the device still has to meet the others there, under a sync that does:
    run anything, with a loss that counts for 0. A device without samples has such ones, or none where counts are free.
    """

    devices: Assignment
    loss: tuple[int, ...] = field(repr=False)  # tokens of each sample that the loss counts
    digest: str  # of what was asked and of what came out: alike on two devices, their plans are

    @property
    def uneven(self) -> bool:
        """Whether devices differ in microbatch counts, which hangs any sync that meets inside a minibatch."""
        return len({len(device) for device in self.devices}) > 1

    @property
    def tokens(self) -> int:
        """What the loss counts in the whole minibatch: for trainers that divide by such a number themselves."""
        return sum(self.loss)

    def token_weight(self, *, averaged: bool) -> float:
        """What to multiply a microbatch's summed loss with. `averaged`: see `mean_weights`."""
        return self._of(1, averaged)

    def sample_weights(self, *, averaged: bool) -> tuple[float, ...]:
        """What to multiply each sample's mean loss with. `averaged`: see `mean_weights`."""
        return tuple(self._of(own, averaged) for own in self.loss)

    def mean_weights(self, *, averaged: bool) -> tuple[tuple[float, ...], ...]:
        """What to multiply each microbatch's mean loss with, for each device.

        The weighted losses of all devices then add up to the mean over all tokens of the minibatch; so do gradients.
        `averaged` is for frameworks that take the mean of the devices' gradients (FSDP and DDP as they come): weights
        are times the number of devices then. Divide by nothing else: not by the number of microbatches.
        """
        return tuple(
            tuple(self._of(sum([self.loss[i] for i in part]), averaged) for part in device) for device in self.devices
        )

    def _of(self, tokens: int, averaged: bool) -> float:
        return tokens * (len(self.devices) if averaged else 1) / self.tokens if self.tokens else 0.0


def plan(
    lengths: ArrayLike,
    *,
    devices: int,
    max_tokens: int,
    weights: ArrayLike | None = None,
    loss: ArrayLike | None = None,
    balancer: str = "sorted-slice",
    speeds: ArrayLike | None = None,
) -> Plan:
    """Which device runs which samples of a minibatch, in which microbatches of at most `max_tokens`.

    `weights` are what samples cost, in any unit; without any, length + length^2 / 50,000 (see EVEN).
    `loss` are the tokens of each sample that the trainer's loss counts; without any, all but the first.
    `balancer`: sorted-slice runs with every sync, for all devices get as many microbatches. lb-mini and lb-robust
    balance closer and are for on-demand alone. `speeds`, for lb-mini, are what each device does in a second, in any
    unit.
    """
    length = whole_numbers("length", lengths, 1)
    if devices < 1:
        raise InputError(f"{devices} devices", fix="give at least 1")
    check_limit(length, max_tokens)
    weight = weigh(length) if weights is None else numbers("weight", weights, len(length))
    counts = length - 1 if loss is None else loss_tokens(loss, length)
    speed = None if speeds is None else numbers("speed", speeds, devices, "device")
    assignment = balance(balancer, length, weight, devices, max_tokens, speeds=speed)
    word = digest(balancer, int(devices), int(max_tokens), length, weight, counts, speed, assignment)
    return Plan(assignment, tuple(counts.tolist()), word)


def weigh(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """What samples cost where nobody said: the linear part is 1 for each token."""
    weights: NDArray[np.float64] = lengths + lengths / EVEN * lengths
    return weights


def digest(*values: Any) -> str:
    """Short, and another one for anything else, down to the last bit of a float."""
    plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def check_limit(lengths: NDArray[np.int64], max_tokens: int) -> None:
    """Refuse a sample that fits into no microbatch, by name."""
    if len(lengths) and lengths[longest := int(lengths.argmax())] > max_tokens:
        raise InputError(
            f"{lengths[longest]} tokens, over max_tokens {max_tokens}",
            where=f"sample {longest}",
            fix=f"raise max_tokens to {lengths[longest]}, or cut the sample or leave it out",
        )


def loss_tokens(loss: ArrayLike, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many as samples, and of each no more than it has tokens."""
    counts = whole_numbers("loss count", loss, 0)
    as_many("loss count", len(counts), len(lengths), "sample")
    refuse("loss count", counts, counts > lengths, "sample", "give at most the sample's length")
    return counts
