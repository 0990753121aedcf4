"""Threads of one process: the arenas are plain tensors that everybody sees.

Nothing dies alone here, so what a kernel tells about processes is told by the devices themselves: one that fails says
so, and whoever meets it or looks into memory afterwards ends at once with its name.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from odc_engine.backends.base import MAIN, ROOMS, Lockable
from odc_engine.backends.patience import LIMIT, did_not_come
from odc_engine.errors import PeerLost
from odc_engine.places.place import HOST, Place
from odcsim.errors import InputError

Range = tuple[int, int]  # a device, and where in its arena


class Team:
    """What the devices of one process share. `timeout`: seconds, as in shm."""

    def __init__(self, size: int, timeout: float = LIMIT) -> None:
        self.size, self.timeout = size, timeout
        self.arenas: list[Tensor] = [torch.empty(0, dtype=torch.uint8, device="cpu")] * size
        self._boards: tuple[list[Any], list[Any]] = ([None] * size, [None] * size)
        self._came = [[0] * size for _ in range(ROOMS)]
        self._changed = threading.Condition()
        self._taken = 0
        self._lost: tuple[list[int], str] | None = None  # the first to fail: later failures follow from it
        self._locks: dict[Range, threading.Lock] = {}
        self._holders: dict[Range, int] = {}

    def fail(self, devices: list[int], what: str) -> None:
        """Have everybody who still runs end with these names."""
        with self._changed:
            self._lost = self._lost or (devices, what)
            self._changed.notify_all()

    def check(self) -> None:
        if self._lost is not None:
            raise PeerLost(*self._lost)

    def meet(self, rank: int, room: int) -> None:
        came = self._came[room]
        with self._changed:
            came[rank] += 1
            count = came[rank]
            if min(came) >= count:
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._lost is not None or min(came) >= count, self.timeout)
            missing = [device for device in range(self.size) if came[device] < count]
        if missing:
            self.fail(missing, did_not_come(self.timeout))
            self.check()
        if room == MAIN:
            self._boards[count % 2][rank] = None  # all have read what lay there, which may be large

    def take(self) -> int:
        with self._changed:
            self._taken += 1
            return self._taken - 1

    def refill(self) -> None:
        self._taken = 0

    def swap(self, rank: int, value: Any) -> list[Any]:
        """Meet in MAIN, and see what everybody has brought. There are two boards, since who is quick writes on the next
        one while others still read; before the one after that, all have come to a further meeting."""
        board = self._boards[self._came[MAIN][rank] % 2]
        board[rank] = value
        self.meet(rank, MAIN)
        return list(board)

    def try_lock(self, rank: int, held: Range) -> bool:
        if not self._locks.setdefault(held, threading.Lock()).acquire(blocking=False):
            return False
        self._holders[held] = rank
        return True

    def unlock(self, held: Range) -> None:
        self._locks[held].release()

    @contextmanager
    def lock(self, rank: int, held: Range) -> Iterator[None]:
        lock = self._locks.setdefault(held, threading.Lock())
        if not lock.acquire(timeout=self.timeout):
            self.fail([self._holders[held]], f"held a lock for {self.timeout:g} s: stopped?")
            self.check()
        self._holders[held] = rank
        try:
            yield
        finally:
            lock.release()


class ThreadMemory(Lockable):
    """One device's side of a team, for all threads of that device. `place`: where it works, and where its arena is."""

    def __init__(self, team: Team, rank: int, place: Place = HOST) -> None:
        self.team, self.rank, self.size, self.place = team, rank, team.size, place
        self.timeout = team.timeout

    def allocate(self, nbytes: int) -> None:
        try:
            self.team.arenas[self.rank] = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        except RuntimeError as error:
            raise InputError(
                f"no memory for an arena of {nbytes / 1e6:.0f} MB ({str(error).splitlines()[0]})",
                fix="use fewer devices, a smaller model, or --accumulate locked",
            ) from None
        self.meet(MAIN)

    def view(self, device: int) -> Tensor:
        self.team.check()
        return self.team.arenas[device]

    def check(self) -> None:
        self.team.check()

    @contextmanager
    def lock(self, device: int, start: int, stop: int) -> Iterator[None]:  # noqa: ARG002
        # Everybody cuts an arena in the same places, so a range's start stands for the range.
        with self.team.lock(self.rank, (device, start)):
            yield

    def try_lock(self, device: int, start: int, stop: int) -> bool:  # noqa: ARG002
        return self.team.try_lock(self.rank, (device, start))

    def unlock(self, device: int, start: int, stop: int) -> None:  # noqa: ARG002
        self.team.unlock((device, start))

    def meet(self, room: int) -> None:
        """In MAIN for this device first. Elsewhere transfers meet, and who has streams has nobody to meet there."""
        if room == MAIN:
            self.place.finish()
        self.team.meet(self.rank, room)

    def take(self) -> int:
        self.place.finish()  # a device takes when it is free, however far its thread has run ahead
        self.check()
        return self.team.take()

    def refill(self) -> None:
        self.team.refill()

    def exchange(self, value: Any) -> list[Any]:
        """What every device has brought, in the order of devices: the things themselves, not copies."""
        self.place.finish()
        return self.team.swap(self.rank, value)

    def fail(self, error: BaseException) -> None:
        """Say that this device ends, and why."""
        self.team.fail([self.rank], f"failed ({' '.join(f'{type(error).__name__}: {error}'.split())})")

    def close(self) -> None:
        """Nothing to give back: the memory goes with the team."""
