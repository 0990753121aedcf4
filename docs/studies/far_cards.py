"""A backend for one study: processes of one machine, in nodes that see each other's memory through cards of one rate.

A card carries one thing at a time in each direction. Inside a node bytes take as long as they take here.
"""

import threading
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from odc_engine.backends.backend import Processes
from odc_engine.backends.base import FarMemory, Host, PeerMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import PeerLost


class Cards(FarMemory):
    """`host` has all arenas, of which those of the own node alone are shown. `rate`: bytes in a second."""

    def __init__(self, host: SharedMemory, node: int, rate: float) -> None:
        self.host, self._rate, self._node = host, rate, node
        self.rank, self.size, self.timeout = host.rank, host.size, host.timeout
        self.every_near = tuple(self._near_of(device) for device in range(self.size))
        self._ways = {"in": threading.Lock(), "out": threading.Lock()}

    def _near_of(self, device: int) -> range:
        first = device // self._node * self._node
        return range(first, min(self.size, first + self._node))

    @property
    def near(self) -> range:
        return self._near_of(self.rank)

    def allocate(self, nbytes: int) -> None:
        self.host.allocate(nbytes)

    def view(self, device: int) -> Tensor:
        if device not in self.near:
            raise ValueError(f"device {device} has no address here")
        return self.host.view(device)

    def _carry(self, way: str, source: Tensor, target: Tensor) -> None:
        with self._ways[way]:
            until = time.monotonic() + source.nbytes / self._rate
            target.copy_(source)
            time.sleep(max(0.0, until - time.monotonic()))

    def fetch(self, device: int, start: int, into: Tensor) -> None:
        self._carry("in", self.host.view(device)[start : start + into.nbytes], into)

    def send(self, device: int, start: int, data: Tensor) -> None:
        self._carry("out", data, self.host.view(device)[start : start + data.nbytes])

    def arrive(self) -> None:
        """It has, when it is sent."""

    def meet(self, room: int) -> None:
        self.host.meet(room)

    def check(self) -> None:
        self.host.check()

    def silent(self, devices: list[int], what: str) -> PeerLost:
        return self.host.silent(devices, what)

    def take(self) -> int:
        return self.host.take()

    def refill(self) -> None:
        self.host.refill()

    def fail(self, error: BaseException) -> None:
        self.host.fail(error)

    def close(self) -> None:
        self.host.close()


@dataclass(frozen=True, slots=True)
class Behind(Processes):
    """`node`: devices of one. `rate`: of a card, bytes in a second."""

    node: int = 2
    rate: float = 1e8

    def memory(self, host: Host, device: torch.device | None = None) -> PeerMemory:  # noqa: ARG002
        assert isinstance(host, SharedMemory)  # it is one machine
        return Cards(host, self.node, self.rate)
