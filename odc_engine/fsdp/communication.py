"""The calls of a training loop, whether communication is one-sided (OnDemand) or FSDP2's own (Collective)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from odc_engine.fsdp.retry import halved
from odcsim.errors import InputError

Batch = TypeVar("Batch")


class Communication(ABC):
    @abstractmethod
    def drain(self) -> None:
        """Make later compute of this rank wait for its transfers."""

    @abstractmethod
    def settle(self) -> None:
        """Synchronize when all pushes are done; then each `.grad` holds the sum over ranks (under OnDemand by
        default the mean), for every parameter that any rank used."""

    @abstractmethod
    def publish(self) -> None:
        """Drop the gradients, and make the new weights readable for all ranks."""

    def take(self) -> int:
        """Return the next number of a counter that all ranks share, for a queue of microbatches.

        `settle()` waits until every rank has taken its last number, and `publish()` resets the counter to 0.
        """
        raise InputError("take() with collectives", fix="take between publish() and settle(), without `meets`")

    def retry(
        self,
        loss: Callable[[Batch], Tensor],  # noqa: ARG002 - for who can
        batch: Batch,  # noqa: ARG002
        halve: Callable[[Batch], tuple[Batch, Batch]] = halved,  # noqa: ARG002
    ) -> Tensor:
        """Run forward and backward of a microbatch, and halve it if memory runs out. `loss` must be a sum over
        samples."""
        problem = "retry() with collectives: the other devices would wait in each layer for the additional microbatch"
        raise InputError(problem, fix="use OnDemand without `meets`")

    @abstractmethod
    def close(self) -> None:
        """Restore stock communication. The model can then be given to another communication."""
