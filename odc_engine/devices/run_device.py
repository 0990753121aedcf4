"""What a run asks of one device, which is a process (`process.ProcessDevice`) or a thread (`thread.ThreadDevice`); what
both begin with, and what they leave."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from odc_engine.decoder.model import Decoder
from odc_engine.job import Job
from odcsim.schedule import Schedule
from odcsim.timeline import Floats


@dataclass(frozen=True, slots=True)
class Recorded:
    """One device's times of one minibatch, since its start on device 0's clock."""

    start: float
    asked: Floats
    had: Floats
    taken: tuple[int, ...]  # entries of the shared queue that it ran


class RunDevice(ABC):
    """The calls that a run makes on one rank: its share of each minibatch, its times, and synchronization."""

    rank: int

    @abstractmethod
    def minibatch(self, number: int) -> Recorded:
        """Run forward and backward of this rank's microbatches, settle, step and publish."""

    @abstractmethod
    def gradients(self, schedule: Schedule) -> None:
        """Leave the sum of gradients over all ranks in `.grad`."""

    @abstractmethod
    def warm_up(self, schedule: Schedule) -> None:
        """Do everything that a minibatch does, without changing weights: the first time pays for new memory and
        state."""

    @abstractmethod
    def whole_gradients(self) -> dict[str, Tensor]:
        """Return every parameter's gradient, put together from all ranks; zeros if no rank used it."""

    @abstractmethod
    def publish(self) -> None:
        """Drop the gradients, and make the weights readable for all ranks."""

    @abstractmethod
    def gathered(self, recorded: Recorded) -> list[Recorded] | None:
        """Return every rank's record, on rank 0."""

    @abstractmethod
    def meet(self) -> None:
        """Synchronize: return when every rank has called it as often as this one."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""


def drawn(job: Job) -> Decoder:
    """Return the whole model with its initial weights."""
    return Decoder(job.cost.model, seed=job.seed, device=job.backend.draws_on)


def idle_step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step that changes no weight, and makes the optimizer's state as before the first one: zeros."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
    optimizer.zero_grad()


def as_block(every: list[Recorded]) -> tuple[Floats, Floats]:
    """Return times [step, rank] since the first rank started."""
    first = min(r.start for r in every)
    asked = np.stack([r.asked + (r.start - first) for r in every], axis=1)
    return asked, np.stack([r.had + (r.start - first) for r in every], axis=1)
