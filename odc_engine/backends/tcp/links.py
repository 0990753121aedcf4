"""The ranks of several machines as they see each other: synchronization, which are alive, and which one ended the run.

Each pair of devices has a connection, on which one tells the other to which meetings it has come, that it lives, and
for whom it ends: as the pages of processes on one machine do (`shm/peers.py`), and nobody has to answer. A process that
dies closes its connections; where a machine or the network to it is gone, the system breaks them, as nothing that is
sent is acknowledged. A network that is back before the timeout is over ends nothing: what was sent arrives later. No
store is asked, so no device's death keeps others from naming it.
"""

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import torch.distributed as dist

from odc_engine.backends.base import ROOMS
from odc_engine.backends.patience import (
    LONGER,
    LOOK,
    NOTICED,
    REPORTED,
    Patience,
    did_not_close,
    did_not_come,
    outages,
    until_repeated,
)
from odc_engine.backends.tcp.sockets import break_when_unanswered, connect, on_the_way, unanswered
from odc_engine.errors import PeerLost

BEAT = 1.0  # seconds between two words of who has nothing to say
STILL = 5 * BEAT  # after so many without one a process does not run
MUTE = 25 * BEAT  # ... and after so many it is not only that Python stood still, as in a long call that keeps its lock
LINGER = 0.3  # seconds from the first loss to the first word of it: machines and jobs die as a whole
LEAVES, LEFT = 2**31 - 2, 2**31 - 1  # it comes to no more meetings; it has freed its memory, too
LEFT_EARLY = "left: it synchronized fewer times than the others"
DOWN = "its machine, or the network to it, is down"
_WORD = struct.Struct("<iiq")
_AT_ONCE = 256 * _WORD.size
_BEATS, _CAME, _ENDS, _TAKES, _REFILLS, _TOLD = range(6)


class Links:
    """`timeout`: seconds after which a peer that does not come to a meeting is reported. Made by all at once.
    Whoever is lost is told by its rank among all, be the group a part of them.

    `broke`: called with a device whose connection is gone, by another thread.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float) -> None:
        self.rank, self.size, self.timeout = dist.get_rank(group), dist.get_world_size(group), timeout
        self.broke: Callable[[int], None] = lambda _: None
        self._ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._names = self._told(group)
        made = connect(group, lambda _: 1)
        self._sockets = {device: several[0] for device, several in made.items()}
        self._others = sorted(self._sockets)
        self._news, self._telling, self._asking = threading.Condition(), threading.Lock(), threading.Lock()
        self._came = [[0] * ROOMS for _ in range(self.size)]
        self._ends = [0] * self.size  # 0 while all is well, then 1 + the device at fault, or LEFT
        self._gone: dict[int, str] = {}
        self._first_gone = 0.0
        self._last = [time.monotonic()] * self.size
        self._unanswered = [0.0] * self.size  # when that was last so
        self._heard = [b""] * self.size  # of a word whose rest has not come yet
        self._unsent = [bytearray() for _ in range(self.size)]  # words for which a connection had no room yet
        self._answers: list[int] = []
        self._closed = False
        self._taken = 0  # device 0 counts for all
        for each in self._sockets.values():
            break_when_unanswered(each, timeout)
        threading.Thread(target=self._listen, name="odc-links", daemon=True).start()

    def _told(self, group: dist.ProcessGroup | None) -> list[str]:
        told = [""] * self.size
        dist.all_gather_object(told, f"pid {os.getpid()} on {socket.gethostname()}", group=group)
        return told

    def _listen(self) -> None:
        """Until this device has left, and so have all others."""
        with selectors.DefaultSelector() as selector:
            for device, each in self._sockets.items():
                selector.register(each, selectors.EVENT_READ, device)
            beat = look = 0.0
            while selector.get_map():
                for key, _ in selector.select(BEAT / 2):
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                        self._forget(key.data)
                if not self._closed and time.monotonic() > beat:
                    beat = time.monotonic() + BEAT
                    self._tell(_BEATS)
                if time.monotonic() > look:
                    look = time.monotonic() + BEAT / 4
                    self._look_for_outages()
            outages.pop(self, None)

    def _look_for_outages(self) -> None:
        for device in [d for d in self._others if d not in self._gone and unanswered(self._sockets[d])]:
            self._unanswered[device] = time.monotonic()
        if seconds := max(self._outage(device) for device in self._others):
            outages[self] = seconds
        else:
            outages.pop(self, None)

    def _outage(self, device: int) -> float:
        """For how long the network to it has been away, until it is heard of again."""
        away = device not in self._gone and self._unanswered[device] > self._last[device]
        return self._unanswered[device] - self._last[device] if away else 0.0

    def _hear(self, device: int) -> bool:
        """Whether there may be more."""
        try:
            came = self._sockets[device].recv(_AT_ONCE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError as error:
            return self._lose(device, "died" if isinstance(error, ConnectionResetError) else _unreachable(error))
        if not came:
            return self._lose(device, "died")
        heard = self._heard[device] + came
        whole = len(heard) - len(heard) % _WORD.size
        for word in _WORD.iter_unpack(heard[:whole]):
            self._take_in(device, *word)
        self._heard[device] = heard[whole:]
        return True

    def _lose(self, device: int, what: str) -> bool:
        with self._news:
            self._gone[device] = what
            self._first_gone = self._first_gone or time.monotonic()
            self._news.notify_all()
        if self._ends[device] != LEFT:  # else others may still ask for what it has
            self.broke(device)
        return False

    def _forget(self, device: int) -> None:
        """Whoever has left takes this end for gone, too, once it is closed."""
        if self._ends[self.rank] == LEFT or self._ends[device] != LEFT:
            self._sockets[device].close()

    def _take_in(self, device: int, kind: int, what: int, number: int) -> None:
        with self._news:
            self._last[device] = time.monotonic()
            if kind == _CAME:
                self._came[device][what] = number
            elif kind == _ENDS:
                self._ends[device] = what
            elif kind == _TAKES:
                self._tell(_TOLD, number=self._counted(), to=[device])
            elif kind == _REFILLS:
                self._taken = 0
                self._tell(_TOLD, to=[device])
            elif kind == _TOLD:
                self._answers.append(number)
            self._news.notify_all()

    def _counted(self) -> int:
        self._taken += 1
        return self._taken - 1

    def _tell(self, kind: int, what: int = 0, number: int = 0, to: list[int] | None = None) -> None:
        """Nobody is waited for: what a connection has no room for goes later, before any other word."""
        word = _WORD.pack(kind, what, number)
        with self._telling:
            for device in self._others if to is None else to:
                if kind != _BEATS or not self._unsent[device]:  # else older words will do to say that this one lives
                    self._unsent[device] += word
                self._send(device)

    def _send(self, device: int) -> None:
        """Whoever is gone is not told; who reads from the connection notices."""
        unsent = self._unsent[device]
        try:
            while unsent:
                del unsent[: self._sockets[device].send(unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:
            unsent.clear()

    def meet(self, room: int) -> None:
        """Wait until every rank has come to this room as often as this one."""
        with self._news:
            self._came[self.rank][room] += 1
            count = self._came[self.rank][room]
        self._tell(_CAME, room, count)
        patience = Patience()
        while not self._waited(lambda: not self._missing(room, count)):
            self._look_for(room, count, patience)

    def _waited(self, condition: Callable[[], bool]) -> bool:
        with self._news:
            return self._news.wait_for(condition, LOOK)

    def _missing(self, room: int, count: int) -> list[int]:
        return [d for d in self._others if self._came[d][room] < count]

    def _look_for(self, room: int, count: int, patience: Patience) -> None:
        """Raise PeerLost if the others will not come to a room, or have not come in time."""
        lost = self.fault()
        with self._news:  # else one could come and leave between the two
            missing = self._missing(room, count)
            left = [d for d in missing if self._ends[d] >= LEAVES]
        if missing and (lost or left):
            self._raise(lost or self._lost(left, LEFT_EARLY))
        if missing and (over := patience.over(self, missing)):
            self._raise(self.silent(missing, did_not_come(over)))

    def _raise(self, lost: PeerLost) -> None:
        """Others hear why this device will be gone, too."""
        if self._ends[self.rank] == 0:
            self.fail(lost)
        raise lost

    def _lost(self, devices: list[int], what: str) -> PeerLost:
        return PeerLost([self._ranks[device] for device in devices], what)

    def check(self) -> None:
        """Raise PeerLost if a peer is known to have failed."""
        if (self._gone or any(self._ends)) and (lost := self.fault()):
            self._raise(lost)

    def fault(self) -> PeerLost | None:
        """The devices at fault, if any. None, too, a moment long, until all that have died at once are known."""
        with self._news:
            ends, gone = {d: self._ends[d] for d in self._others}, dict(self._gone)
        accused = {end - 1 for end in ends.values() if 0 < end < LEAVES}
        if failed := sorted(d for d in accused if ends.get(d) == d + 1):
            return self._lost(failed, "failed: its own error says why")
        if died := sorted(d for d in gone if ends[d] in (0, LEAVES)):
            if time.monotonic() < self._first_gone + LINGER:
                return None
            return self._lost(died, f"{_one(gone[d] for d in died)} ({self._named(died)})")
        if left := sorted(d for d in accused if ends.get(d, 0) >= LEAVES):
            return self._lost(left, LEFT_EARLY)
        if silent := sorted(accused - {self.rank}):
            return self.silent(silent, "did not answer another device in time")
        if accused:
            return self._lost([d for d in ends if ends[d] == self.rank + 1], "gave up waiting for this one")
        return None

    def lost_by(self, device: int, what: str) -> PeerLost:
        """For a connection that broke: its device, or who made that one leave."""
        patience = Patience()
        while not patience.ended(NOTICED):
            if lost := self.fault():
                return lost
            if self._ends[device] == LEFT:
                return self._lost([device], LEFT_EARLY)
            time.sleep(LOOK)
        return self._lost([device], what)

    def stopped(self) -> list[int]:
        """Those of whom nothing comes, though their machines answer, and have had the time to repeat what was lost."""
        return [d for d in self._others if time.monotonic() > self._last[d] + MUTE + 2 * self._outage(d)]

    def silent(self, devices: list[int], what: str) -> PeerLost:
        """Return the error for ranks that do not answer: those that do not run, or all if all do."""
        now = time.monotonic()
        if still := [d for d in devices if now > self._last[d] + STILL]:
            quiet = now - max(self._last[d] for d in still)
            why = DOWN if any(map(self._outage, still)) else "stopped"
            return self._lost(still, f"{what}: no word for {quiet:.0f} s, {why} ({self._named(still)})")
        return self._lost(devices, f"{what} ({self._named(devices)}); {LONGER}")

    def explain(self) -> PeerLost | None:
        """Name the rank that may have caused a broken connection or a timeout, which gloo reports without one."""
        patience = Patience()
        while not patience.ended(REPORTED):
            if lost := self.fault():
                return lost
            time.sleep(LOOK)
        still = [d for d in self._others if time.monotonic() > self._last[d] + STILL]
        return self.silent(still, f"did not answer within {self.timeout:g} s") if still else None

    def take(self) -> int:
        return self._asked(_TAKES)

    def refill(self) -> None:
        self._asked(_REFILLS)

    def _asked(self, kind: int) -> int:
        """Of device 0."""
        self.check()
        if self.rank == 0:
            with self._news:
                self._taken = 0 if kind == _REFILLS else self._taken
                return self._counted() if kind == _TAKES else 0
        with self._asking:
            self._answers.clear()
            self._tell(kind, to=[0])
            patience = Patience()
            while not self._waited(lambda: bool(self._answers)):
                self.check()
                if patience.over(self, [0]):
                    self._raise(self.silent([0], "did not answer a take() from the queue"))
            return self._answers.pop()

    def fail(self, error: BaseException) -> None:
        """Tell peers that this rank ends, and which rank is at fault."""
        if self._ends[self.rank] != LEFT:
            at_fault = error.devices[0] if isinstance(error, PeerLost) else -1
            self._end(1 + (self._ranks.index(at_fault) if at_fault in self._ranks else self.rank))

    def leave(self) -> bool:
        """Come to no more meetings, and wait until no other rank comes to any."""
        if self._ends[self.rank] == 0:
            self._end(LEAVES)
        patience = Patience()
        while self._ends[self.rank] == LEAVES and not self._waited(lambda: not self._staying()):
            if over := patience.over(self, staying := self._staying()):
                raise self.silent(staying, did_not_close(over))
        return all(end >= LEAVES for end in self._ends)

    def _staying(self) -> list[int]:
        return [d for d in self._others if self._ends[d] == 0 and d not in self._gone]

    def _end(self, word: int) -> None:
        self._ends[self.rank] = word
        self._tell(_ENDS, word)

    def _named(self, devices: list[int]) -> str:
        return ", ".join(self._names[device] for device in devices)

    def close(self) -> None:
        """Leave. Whoever still waits for this device hears that it will not come."""
        if self._ends[self.rank] in (0, LEAVES):
            self._end(LEFT)
            self._deliver()
        self._ends[self.rank], self._closed = LEFT, True
        for device, each in self._sockets.items():
            with suppress(OSError):  # the other end was quicker
                each.shutdown(socket.SHUT_WR)
            if device in self._gone:
                each.close()

    def _deliver(self) -> None:
        """Return when all that have not left have this device's words, else some would take it for dead: once it has
        ended, its system answers a late word by breaking the connection, and forgets what was sent."""
        patience = Patience()
        while not patience.ended(until_repeated(self.timeout)) and any(map(self._lacks_words, self._others)):
            time.sleep(LOOK / 10)
            with self._telling:
                for device in self._others:
                    self._send(device)

    def _lacks_words(self, device: int) -> bool:
        waits = self._ends[device] in (0, LEAVES) and device not in self._gone
        return waits and (bool(self._unsent[device]) or on_the_way(self._sockets[device]))


def _unreachable(error: OSError) -> str:
    return f"cannot be reached any more ({error.strerror}): {DOWN}"


def _one(texts: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(texts))
