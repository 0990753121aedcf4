"""What a training loop asks of a model's communication, be it one-sided (OnDemand) or FSDP2's own (Collective)."""

from abc import ABC, abstractmethod

from odcsim.errors import InputError


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

    @abstractmethod
    def close(self) -> None:
        """Put stock communication back. The model can be given to another communication."""
