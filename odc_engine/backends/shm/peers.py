"""The ranks of one machine as they see each other: synchronization, which are alive, and which one ended the run.

Each rank has a page that all others map. It counts how often the rank came to each room, and says why it ends: because
of itself, or because it lost another rank. So a rank that finds many others gone can name the one that went first.
"""

import os
import select
import threading
import time
from pathlib import Path

import numpy as np
import torch.distributed as dist

from odc_engine.backends.base import ROOMS
from odc_engine.backends.patience import LONGER, LOOK, REPORTED, Patience, did_not_close, did_not_come
from odc_engine.backends.shm import futex
from odc_engine.backends.shm.files import Mapped, share, unmap
from odc_engine.errors import PeerLost

PAGE = 4096
ENDS = ROOMS  # the word after those that meetings count in: 0 while all is well, then 1 + the device at fault, or LEFT
TAKEN = 16  # the word, in a cache line of its own, in which device 0's page counts what was taken from a shared queue
LEAVES, LEFT = 2**32 - 2, 2**32 - 1  # it comes to no more meetings; it has freed its memory, too
LEFT_EARLY = "left: it synchronized fewer times than the others"


class Peers:
    """`timeout`: seconds after which a peer that does not synchronize is reported. All ranks make it at the same time.

    Messages name a lost rank by its number among all ranks, also if the group is a part of them.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float) -> None:
        self.rank, self.size, self.timeout = dist.get_rank(group), dist.get_world_size(group), timeout
        self._ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._pages: list[Mapped] = share(group, PAGE)
        self.pids = [page.pid for page in self._pages]
        self._words = [np.frombuffer(page.memory, dtype=np.uint32) for page in self._pages]
        self._addresses = [int(words.ctypes.data) for words in self._words]
        self._others = [device for device in range(self.size) if device != self.rank]
        self._came = [0] * ROOMS
        self._next_look = 0.0
        self._pidfds: dict[int, int] = {}  # -> device
        self._polling = threading.Lock()  # lanes look too, and a poll object is for one thread at a time
        self._watch()

    def _watch(self) -> None:
        self._poll = select.poll()
        for device in self._others:
            try:
                pidfd = os.pidfd_open(self.pids[device])
            except (AttributeError, OSError):  # Python knows it on Linux alone, and kernels before 5.3 do not
                self._unwatch()
                return
            self._pidfds[pidfd] = device
            self._poll.register(pidfd, select.POLLIN)

    def _unwatch(self) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._pidfds.clear()

    def meet(self, room: int) -> None:
        """Wait until every rank has come to this room as often as this one."""
        self._came[room] += 1
        count = self._came[room]
        self._words[self.rank][room] = count
        futex.wake(self._addresses[self.rank] + 4 * room)
        patience = Patience()
        for device in range(self.size):
            while (seen := int(self._words[device][room])) < count:
                futex.wait(self._addresses[device] + 4 * room, seen, LOOK)
                if int(self._words[device][room]) < count:
                    self._look_for(room, count, patience)

    def _look_for(self, room: int, count: int, patience: Patience) -> None:
        """Raise PeerLost if the others will not come to a room, or have not come in time."""
        try:
            self.look()
            missing = self._missing(room, count)
            if left := [d for d in missing if self._ends(d) >= LEAVES]:
                raise self._lost(left, LEFT_EARLY)
            if missing and (over := patience.over(self, missing)):
                raise self.silent(missing, did_not_come(over))
        except PeerLost:
            if self._missing(room, count):
                raise  # else everybody has come meanwhile, and some may have ended since

    def _missing(self, room: int, count: int) -> list[int]:
        return [d for d in self._others if int(self._words[d][room]) < count]

    def _ends(self, device: int) -> int:
        return int(self._words[device][ENDS])

    def check(self) -> None:
        """Raise PeerLost if a peer is known to have failed; looks only now and then."""
        if (now := time.monotonic()) >= self._next_look:
            self._next_look = now + LOOK
            self.look()

    def look(self) -> None:
        """Raise PeerLost for the ranks at fault, if any."""
        dead = self._dead()
        ends = {d: self._ends(d) for d in self._others}
        accused = {e - 1 for e in ends.values() if 0 < e < LEAVES}
        if failed := sorted(d for d in accused if ends.get(d) == d + 1):
            raise self._lost(failed, "failed: its own error says why")
        if died := [d for d in dead if ends[d] in (0, LEAVES)]:
            raise self._lost(died, f"died ({self._named(died)})")
        if left := sorted(d for d in accused if ends.get(d, 0) >= LEAVES):
            raise self._lost(left, LEFT_EARLY)
        if silent := sorted(accused - {self.rank}):
            raise self.silent(silent, "did not answer another device in time")
        if accused:
            raise self._lost([d for d in ends if ends[d] == self.rank + 1], "gave up waiting for this one")

    def _lost(self, devices: list[int], what: str) -> PeerLost:
        return PeerLost([self._ranks[device] for device in devices], what)

    def _dead(self) -> list[int]:
        if self._pidfds:
            with self._polling:
                return sorted(self._pidfds[fd] for fd, _ in self._poll.poll(0))
        return [d for d in self._others if not _exists(self.pids[d])]

    def stopped(self) -> list[int]:
        """Return the ranks stopped by a signal. One that a debugger holds may continue any time, and gets the full
        timeout."""
        return [d for d in self._others if _state(self.pids[d]) == "T"]

    def silent(self, devices: list[int], what: str) -> PeerLost:
        """Return the error for ranks that do not answer: those that are stopped, or all if none is."""
        stopped = [d for d in devices if _state(self.pids[d]) in "Tt"]
        if stopped:
            return self._lost(stopped, f"{what}: stopped ({self._named(stopped)})")
        return self._lost(devices, f"{what} ({self._named(devices)}); {LONGER}")

    def explain(self) -> PeerLost | None:
        """Name the rank that may have caused a broken connection or a timeout, which gloo reports without one."""
        patience = Patience()
        while self._words and not patience.ended(REPORTED):
            try:
                self.look()
            except PeerLost as lost:
                return lost
            if any(_state(self.pids[d]) in "Tt" for d in self._others):
                return self.silent(self._others, f"did not answer within {self.timeout:g} s")
            time.sleep(LOOK)
        return None

    def fail(self, error: BaseException) -> None:
        """Tell peers that this rank ends, and which rank is at fault."""
        at_fault = error.devices[0] if isinstance(error, PeerLost) else -1
        self._end(1 + (self._ranks.index(at_fault) if at_fault in self._ranks else self.rank))

    def leave(self) -> bool:
        """Come to no more meetings, and wait until no other rank comes to any."""
        self._end(LEAVES)
        patience = Patience()
        while self._ends(self.rank) == LEAVES and (staying := self._staying()):
            if over := patience.over(self, staying):
                raise self.silent(staying, did_not_close(over))
            futex.wait(self._addresses[staying[0]] + 4 * ENDS, 0, LOOK)
        return all(self._ends(device) >= LEAVES for device in range(self.size))

    def _staying(self) -> list[int]:
        dead = self._dead()
        return [d for d in self._others if self._ends(d) == 0 and d not in dead]

    def _end(self, word: int) -> None:
        if self._words and self._ends(self.rank) in (0, LEAVES):
            self._words[self.rank][ENDS] = word
            futex.wake(self._addresses[self.rank] + 4 * ENDS)

    @property
    def count(self) -> tuple[int, int, int]:
        """Return the file with rank 0's page, and the bytes to lock for `take`."""
        return self._pages[0].fd, 4 * TAKEN, 4 * TAKEN + 4

    def take(self) -> int:
        """Return the next number of the shared counter. Only under a lock."""
        taken = int(self._words[0][TAKEN])
        self._words[0][TAKEN] = taken + 1
        return taken

    def refill(self) -> None:
        self._words[0][TAKEN] = 0

    def _named(self, devices: list[int]) -> str:
        return ", ".join(f"pid {self.pids[device]}" for device in devices)

    def close(self) -> None:
        """Leave. Ranks that still wait for this one learn that it will not come."""
        self._end(LEFT)
        self._words.clear()
        unmap(self._pages)
        self._unwatch()


def _exists(pid: int) -> bool:
    """One that has ended exists until its parent has asked for its end."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's, and there
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    """A process's state letter, `?` where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
