"""How long to wait for a silent peer, how often to check meanwhile, and what to report after that.

All waiting uses it: synchronization and locks of processes (`shm`), of threads and over a network, and calls that may
never return (`aside`). On a GPU a kernel counts its polls instead.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from odc_engine.errors import PeerLost

LIMIT = 60.0  # seconds that a peer may be silent, where nobody says otherwise: --timeout
HALTED = 5.0  # seconds for which who waits has seen a peer stand still, before it waits no longer
LOOK = 0.05  # seconds between looks for who is gone
LOOKS = 1_000_000  # at a flag in a second, by a kernel: about as many as a GPU gets done
LOOK_UP = 0.5  # and between those of whoever has started devices, for who is stopped
REPORTED = 1.0  # seconds in which a kernel reports a death whose broken connections are seen already
NOTICED = 5.0  # seconds that devices of other machines get to say whose fault a broken connection is
REPEATS = 120.0  # seconds that a system waits at most before it repeats what was lost, each time twice as long
outages: dict[object, float] = {}  # of each network of this process that is away: seconds, until all are heard of again
LATE = "did not synchronize"
LONGER = "wait longer with --timeout, or timeout= of OnDemand"


class Awaited(Protocol):
    """Ranks that one waits for. `timeout`: seconds that a silent one is given."""

    timeout: float

    def stopped(self) -> list[int]: ...


class Patience:
    """Waits for peers, from construction on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next_look = LOOK_UP
        self._still: dict[int, int] = {}  # at so many looks in a row
        self._outage = 0.0

    @property
    def used(self) -> float:
        """Return the seconds waited so far."""
        return time.monotonic() - self._began

    def ended(self, limit: float) -> bool:
        return self.used > limit

    def over(self, peers: Awaited, devices: Sequence[int]) -> float:
        """Return 0 while there is time left for these ranks, then the seconds waited: the timeout, or less if a rank is
        stopped.

        A stopped rank is counted in polls: a process that was stopped itself polls nothing. Twice the seconds without a
        network do not count: then a system waits as long again before it repeats what was lost. It may be a neighbour
        that is held up so.
        """
        self._outage = max([self._outage, *outages.values()])
        if self.ended(peers.timeout + 2 * self._outage):
            return peers.timeout
        if self.ended(self._next_look):
            self._next_look = self.used + LOOK_UP
            self._still = {device: 1 + self._still.get(device, 0) for device in peers.stopped()}
        return HALTED if any(self._still.get(device, 0) * LOOK_UP >= HALTED for device in devices) else 0.0


def until_repeated(timeout: float) -> float:
    """Return the seconds until what was lost has come, if the network was away for less than the timeout."""
    return timeout + min(timeout, REPEATS) + 1.0


def did_not_come(limit: float) -> str:
    return f"{LATE} within {limit:g} s"


def did_not_close(limit: float) -> str:
    return f"did not close its memory within {limit:g} s of this one"


@contextmanager
def hinting(hint: str) -> Iterator[None]:
    """Add a hint to the error if peers have not synchronized in time."""
    try:
        yield
    except PeerLost as lost:
        raise PeerLost(lost.devices, f"{lost.what}; {hint}") if LATE in lost.what else lost from None
