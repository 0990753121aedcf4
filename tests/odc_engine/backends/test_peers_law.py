"""Who waits in a meeting goes on exactly where all have come, however they end afterwards: pages and connections in
every state of two others, and in every state that they may have come to while this device looked."""

import threading
from itertools import product

import numpy as np
import pytest

from odc_engine.backends.base import MAIN, ROOMS
from odc_engine.backends.shm import peers
from odc_engine.backends.tcp import links
from odc_engine.errors import PeerLost

# Of another device: whether it has come, how it ends (0: it lives, LEAVES, LEFT, or 1 + the device at fault), and
# whether it is dead.
STATES = [
    *product((False, True), (0, peers.LEAVES, peers.LEFT, 2, 3), (False,)),
    *product((False, True), (0, peers.LEAVES), (True,)),
]
OTHERS = (1, 2)


LINKS = {peers.LEAVES: links.LEAVES, peers.LEFT: links.LEFT}


class OnPages(peers.Peers):
    """A device of three, whose others' pages and processes are as they are told to be."""

    def __init__(self):
        self.rank, self.size, self.timeout = 0, 3, 0.002
        self._ranks, self._others, self.pids = [0, 1, 2], list(OTHERS), [0, 0, 0]
        self._words = [np.zeros(64, dtype=np.uint32) for _ in range(3)]
        self._addresses = [int(words.ctypes.data) for words in self._words]
        self._came, self._pidfds, self.dead = [0] * ROOMS, {}, []

    def be(self, states):
        for device, (came, end, _) in states.items():
            self._words[device][MAIN], self._words[device][peers.ENDS] = came, end
        self.dead = [device for device, (*_, dead) in states.items() if dead]

    def _dead(self):
        return self.dead

    def stopped(self):
        return []


class OverLinks(links.Links):
    def __init__(self):
        self.rank, self.size, self.timeout = 0, 3, 0.002
        self._ranks, self._others, self._names = [0, 1, 2], list(OTHERS), ["", "", ""]
        self._news, self._came = threading.Condition(), [[0] * ROOMS for _ in range(3)]
        self._ends, self._gone, self._first_gone = [0] * 3, {}, -1e9
        self._last, self._unanswered = [0.0] * 3, [0.0] * 3

    def be(self, states):
        for device, (came, end, _) in states.items():
            self._came[device][MAIN], self._ends[device] = int(came), LINKS.get(end, end)
        self._gone = {device: "died" for device, (*_, dead) in states.items() if dead}

    def _tell(self, *_, **__): ...
    def fail(self, _): ...

    def stopped(self):
        return []


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    for module in (peers, links):
        monkeypatch.setattr(module, "LOOK", 1e-4)


def lost_of(one):
    try:
        one.meet(MAIN)
    except PeerLost as lost:
        return lost
    return None


def at_fault(states):
    """Whom a device that waits in vain names: who says that it failed itself; who died; who left; whom others name."""
    ends = {device: end for device, (_, end, _) in states.items()}
    accused = {end - 1 for end in ends.values() if 0 < end < peers.LEAVES}
    if failed := {d for d in accused if ends.get(d) == d + 1}:
        return failed
    if died := {d for d, (*_, dead) in states.items() if dead and ends[d] in (0, peers.LEAVES)}:
        return died
    return {d for d in accused if ends.get(d, 0) >= peers.LEAVES} or accused


# Each way to be connected, with each state of the first other device.
laws = pytest.mark.parametrize(("kind", "first"), list(product((OnPages, OverLinks), STATES)), ids=str)


@laws
def test_who_has_come_while_one_looked_is_not_waited_for_nor_blamed(kind, first):
    """Nobody had come before. When this device has looked who is gone, others are so; it may have seen their ends."""
    for after in (dict(zip(OTHERS, (first, second), strict=True)) for second in STATES):
        one = kind()
        one.be(dict.fromkeys(OTHERS, (False, 0, False)))
        name = "look" if kind is OnPages else "fault"
        look = getattr(one, name)

        def meanwhile(one=one, look=look, after=after):
            one.be({device: (False, *end) for device, (_, *end) in after.items()})
            try:
                return look()
            finally:
                one.be(after)

        setattr(one, name, meanwhile)
        assert (lost_of(one) is None) == all(came for came, *_ in after.values()), after


@laws
def test_a_meeting_ends_where_all_have_come_or_will_not(kind, first):
    for states in (dict(zip(OTHERS, (first, second), strict=True)) for second in STATES):
        one = kind()
        one.be(states)
        lost, missing = lost_of(one), {d for d, (came, *_) in states.items() if not came}
        if not missing:
            assert lost is None, states
            continue
        gone = {d for d in missing if states[d][1] >= peers.LEAVES}
        assert set(lost.devices) == (at_fault(states) or gone or missing), states
        assert ("within" in str(lost)) == (not at_fault(states) and not gone), states
