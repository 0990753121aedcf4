"""What a training loop asks of a model's communication, be it one-sided (OnDemand) or FSDP2's own (Collective)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from odc_engine.fsdp.retry.halving import halved
from odcsim.errors import InputError

Batch = TypeVar("Batch")


class Communication(ABC):
    @abstractmethod
    def drain(self) -> None:
        """What this device computes from now on comes after its transfers."""

    @abstractmethod
    def settle(self) -> None:
        """Meet when all pushes are done; then `.grad` of every parameter that anybody used is the sum over devices."""

    @abstractmethod
    def publish(self) -> None:
        """Drop the gradients; from now on everybody has the new weights."""

    def take(self) -> int:
        """The next number of a count that all devices share: whose turn it is in a queue of microbatches.

        `settle()` is where devices have all taken what they wanted, and `publish()` starts anew from 0.
        """
        raise InputError("take() where devices meet", fix="take between publish() and settle(), without `meets`")

    def retry(
        self,
        loss: Callable[[Batch], Tensor],  # noqa: ARG002 - for who can
        batch: Batch,  # noqa: ARG002
        halve: Callable[[Batch], tuple[Batch, Batch]] = halved,  # noqa: ARG002
    ) -> Tensor:
        """Forward and backward of a microbatch, in halves where memory runs out. `loss`: a sum over samples."""
        problem = "retry() where devices meet for every layer: others would wait for a microbatch that is not theirs"
        raise InputError(problem, fix="use OnDemand without `meets`")

    @abstractmethod
    def close(self) -> None:
        """Put stock communication back. The model can be given to another communication."""
