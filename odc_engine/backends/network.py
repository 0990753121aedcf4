"""The devices of several machines, as they see each other: meetings over gloo, and who is missing when one fails.

No device can look into another machine, and gloo says that a meeting failed but not by whom. So whoever notices writes
its name into the store that all share, and looks who does not: a roll call. A device that still computes notices when
it comes to the meeting, so nobody is named before the time is up that all have to come.
"""

import time
from contextlib import suppress

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from odc_engine.backends import patience
from odc_engine.backends.base import END, MAIN, Host
from odc_engine.backends.patience import LIMIT, LONGER, LOOK_AFAR, Patience
from odc_engine.errors import EngineError, PeerLost


class Network(Host):
    """Meetings of the training loops alone: lanes that meet do so in the transport. `timeout` is the group's."""

    one_clock = False

    def __init__(self, store: Store, group: dist.ProcessGroup | None = None, timeout: float = LIMIT) -> None:
        self.group, self.timeout = group, timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._store = store

    def meet(self, room: int) -> None:
        if room not in (MAIN, END):
            raise ValueError(f"room {room} is not for meetings over a network")
        began = Patience()
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
        return self._roll_call(Patience())

    def _roll_call(self, began: Patience) -> Exception | None:
        """Who has waited since `began` names nobody before `timeout` is over, unless somebody says that it failed."""
        try:
            self._store.set(f"here {self.rank}", "")
            left = max(self.timeout - began.used, min(patience.NOTICED, self.timeout))
            missing = self._wait_for_all(left)
            failed = self._failed()
        except RuntimeError:
            # It lives with device 0.
            return EngineError("the store is gone: device 0 died, or the network to it")
        waited = began.used
        with suppress(RuntimeError):
            self._leave(missing)
        if failed:
            return PeerLost(failed, "failed: see there")
        if missing:
            return PeerLost(missing, f"did not answer within {waited:.1f} s: died, or {LONGER}")
        return None

    def _wait_for_all(self, seconds: float) -> list[int]:
        """Who has not noticed when time is up, for this device or another. Device 0 has the store, so it stays even
        where it is known who failed."""
        waiting = Patience()
        while missing := self._without("here"):
            if self._store.check(["over"]) or (self.rank and self._failed()):
                break
            if waiting.ended(seconds):
                self._store.set("over", "")
                break
            time.sleep(LOOK_AFAR)
        return missing

    def _leave(self, missing: list[int]) -> None:
        """Device 0 last of those that have noticed."""
        self._store.set(f"read {self.rank}", "")
        reading = Patience()
        while self.rank == 0 and set(self._without("read")) - set(missing) and not reading.ended(patience.NOTICED):
            time.sleep(LOOK_AFAR)

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
