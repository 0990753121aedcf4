"""The devices of several machines, as what transports between them meet through.

The group that a user has is for agreeing once, when this is made: gloo would say that a meeting failed but not by
whom, and not before the time is up that the group was made with.
"""

import torch.distributed as dist

from odc_engine.backends.base import Host
from odc_engine.backends.machines import numbers_of
from odc_engine.backends.patience import LIMIT
from odc_engine.backends.tcp.links import Links
from odc_engine.errors import PeerLost


class Network(Host):
    """`timeout`: seconds after which a peer that does not come is reported. Every device makes one at the same time.

    `machines`: a number for each device's.
    """

    one_clock = False

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = LIMIT) -> None:
        self.group, self.timeout = group, timeout
        self.machines = numbers_of(group)
        self.links = Links(group, timeout)
        self.rank, self.size = self.links.rank, self.links.size

    def meet(self, room: int) -> None:
        self.links.meet(room)

    def take(self) -> int:
        return self.links.take()

    def refill(self) -> None:
        self.links.refill()

    def check(self) -> None:
        self.links.check()

    def leave(self) -> bool:
        return self.links.leave()

    def stopped(self) -> list[int]:
        return self.links.stopped()

    def silent(self, devices: list[int], what: str) -> PeerLost:
        return self.links.silent(devices, what)

    def explain(self) -> Exception | None:
        return self.links.explain()

    def fail(self, error: BaseException) -> None:
        self.links.fail(error)

    def close(self) -> None:
        self.links.close()
