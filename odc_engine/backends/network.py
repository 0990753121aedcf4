"""The devices of several machines, as they see each other: meetings over gloo, and who is missing when one fails.

No device can look into another machine, and gloo says that a meeting failed but not by whom. So whoever notices writes
its name into the store that all share, and looks who does not: a roll call.
"""

import time
from contextlib import suppress

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from odc_engine.backends.base import MAIN
from odc_engine.errors import EngineError, PeerLost

PATIENCE = 5.0  # seconds that others get to notice
LOOK = 0.1


class Network:
    """Meetings of the training loops alone: lanes that meet do so in the transport. `timeout` is the group's."""

    def __init__(self, store: Store, group: dist.ProcessGroup | None = None, timeout: float = 60.0) -> None:
        self.group, self.timeout = group, timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._store = store

    def meet(self, room: int) -> None:
        if room != MAIN:
            raise ValueError(f"room {room} is not for meetings over a network")
        try:
            dist.barrier(group=self.group)
        except RuntimeError as error:
            raise self.explain() or error from None

    def take(self) -> int:
        """The store counts: nobody asks another device."""
        return self._store.add("taken", 1) - 1

    def refill(self) -> None:
        self._store.set("taken", "0")

    def check(self) -> None:
        """Only meetings tell."""

    def explain(self) -> Exception | None:
        """Who is to blame for a meeting that failed, by what devices have written. None where nobody is missing."""
        try:
            self._store.set(f"here {self.rank}", "")
            deadline = time.monotonic() + min(PATIENCE, self.timeout)
            while True:
                failed = [d for d in range(self.size) if d != self.rank and self._store.check([f"failed {d}"])]
                missing = [d for d in range(self.size) if not self._store.check([f"here {d}"])]
                if failed:
                    return PeerLost(failed, "failed: see there")
                if not missing:
                    return None
                if time.monotonic() > deadline:
                    return PeerLost(
                        missing, f"did not answer within {self.timeout:g} s: died, or wait longer with --timeout"
                    )
                time.sleep(LOOK)
        except RuntimeError:
            # It lives with device 0.
            return EngineError("the store is gone: device 0 died, or the network to it")

    def fail(self, error: BaseException) -> None:
        """Tell peers that this device ends. Who only lost another one is not at fault."""
        if not isinstance(error, PeerLost):
            with suppress(RuntimeError):
                self._store.set(f"failed {self.rank}", "")
                self._store.set(f"here {self.rank}", "")

    def close(self) -> None:
        """The group is its maker's."""
