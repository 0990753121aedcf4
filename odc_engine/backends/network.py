"""The devices of several machines, as they see each other: meetings over gloo, and who is missing when one fails.

No device can look into another machine, and gloo says that a meeting failed but not by whom. So whoever notices writes
its name into the store that all share, and looks who does not: a roll call. A device that still computes notices when
it comes to the meeting, so nobody is named before the time is up that all have to come.
"""

import time
from contextlib import suppress

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from odc_engine.backends.base import END, MAIN, Host
from odc_engine.errors import EngineError, PeerLost

PATIENCE = 5.0  # seconds that others get to notice at least, and to read what was found
LOOK = 0.1


class Network(Host):
    """Meetings of the training loops alone: lanes that meet do so in the transport. `timeout` is the group's."""

    one_clock = False

    def __init__(self, store: Store, group: dist.ProcessGroup | None = None, timeout: float = 60.0) -> None:
        self.group, self.timeout = group, timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._store = store

    def meet(self, room: int) -> None:
        if room not in (MAIN, END):
            raise ValueError(f"room {room} is not for meetings over a network")
        began = time.monotonic()
        try:
            dist.barrier(group=self.group)
        except RuntimeError as error:
            raise self._roll_call(began) or error from None

    def take(self) -> int:
        """The store counts: nobody asks another device."""
        return self._store.add("taken", 1) - 1

    def refill(self) -> None:
        self._store.set("taken", "0")

    def check(self) -> None:
        """Only meetings tell."""

    def explain(self) -> Exception | None:
        """Who is to blame for a meeting that failed, by what devices have written. None where nobody is missing."""
        return self._roll_call(time.monotonic())

    def _roll_call(self, began: float) -> Exception | None:
        """Who has waited since `began` names nobody before `timeout` is over, unless somebody says that it failed."""
        try:
            self._store.set(f"here {self.rank}", "")
            missing = self._wait_for_all(max(began + self.timeout, time.monotonic() + min(PATIENCE, self.timeout)))
            failed = self._failed()
        except RuntimeError:
            # It lives with device 0.
            return EngineError("the store is gone: device 0 died, or the network to it")
        waited = time.monotonic() - began
        with suppress(RuntimeError):
            self._leave(missing)
        if failed:
            return PeerLost(failed, "failed: see there")
        if missing:
            return PeerLost(missing, f"did not answer within {waited:.1f} s: died, or wait longer with --timeout")
        return None

    def _wait_for_all(self, deadline: float) -> list[int]:
        """Who has not noticed when time is up, for this device or another. Device 0 has the store, so it stays even
        where it is known who failed."""
        while missing := self._without("here"):
            if self._store.check(["over"]) or (self.rank and self._failed()):
                break
            if time.monotonic() > deadline:
                self._store.set("over", "")
                break
            time.sleep(LOOK)
        return missing

    def _leave(self, missing: list[int]) -> None:
        """Device 0 last of those that have noticed."""
        self._store.set(f"read {self.rank}", "")
        deadline = time.monotonic() + PATIENCE
        while self.rank == 0 and set(self._without("read")) - set(missing) and time.monotonic() < deadline:
            time.sleep(LOOK)

    def _without(self, word: str) -> list[int]:
        return [d for d in range(self.size) if not self._store.check([f"{word} {d}"])]

    def _failed(self) -> list[int]:
        return [d for d in range(self.size) if d != self.rank and self._store.check([f"failed {d}"])]

    def fail(self, error: BaseException) -> None:
        """Tell peers that this device ends. Who only lost another one is not at fault."""
        if not isinstance(error, PeerLost):
            with suppress(RuntimeError):
                for word in ("failed", "read", "here"):
                    self._store.set(f"{word} {self.rank}", "")

    def close(self) -> None:
        """The group is its maker's."""
