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


class OnPages(peers.Peers):
    """A device of three, whose others' pages and processes are as they are told to be."""

    def __init__(self, timeout):
        self.rank, self.size, self.timeout = 0, 3, timeout
        self._ranks, self._others, self.pids = [0, 1, 2], list(OTHERS), [0, 0, 0]
        self._words = [np.zeros(64, dtype=np.uint32) for _ in range(3)]
        self._addresses = [int(words.ctypes.data) for words in self._words]
        self._came, self._pidfds, self.dead = [0] * ROOMS, {}, []

    def be(self, states):
        for device, (came, end, _) in zip(OTHERS, states, strict=True):
            self._words[device][MAIN] = 1 if came else 0
            self._words[device][peers.ENDS] = {links.LEAVES: peers.LEAVES, links.LEFT: peers.LEFT}.get(end, end)
        self.dead = [device for device, (*_, dead) in zip(OTHERS, states, strict=True) if dead]

    def _dead(self):
        return self.dead

    def stopped(self):
        return []


class OverLinks(links.Links):
    def __init__(self, timeout):
        self.rank, self.size, self.timeout = 0, 3, timeout
        self._ranks, self._others, self._names = [0, 1, 2], list(OTHERS), ["", "", ""]
        self._news, self._came = threading.Condition(), [[0] * ROOMS for _ in range(3)]
        self._ends, self._gone, self._first_gone = [0] * 3, {}, -1e9
        self._last, self._unanswered = [0.0] * 3, [0.0] * 3
        self.told = []

    def be(self, states):
        for device, (came, end, dead) in zip(OTHERS, states, strict=True):
            self._came[device][MAIN] = 1 if came else 0
            self._ends[device] = {peers.LEAVES: links.LEAVES, peers.LEFT: links.LEFT}.get(end, end)
            self._gone.pop(device, None)
            if dead:
                self._gone[device] = "died"

    def _tell(self, *word, **_):
        self.told.append(word)

    def fail(self, error):
        self.told.append(error)

    def stopped(self):
        return []


KINDS = (OnPages, OverLinks)


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
    ends = {device: end for device, (_, end, _) in zip(OTHERS, states, strict=True)}
    accused = {end - 1 for end in ends.values() if 0 < end < peers.LEAVES}
    if failed := {d for d in accused if ends.get(d) == d + 1}:
        return failed
    if died := {d for d, (*_, dead) in zip(OTHERS, states, strict=True) if dead and ends[d] in (0, peers.LEAVES)}:
        return died
    if left := {d for d in accused if ends.get(d, 0) >= peers.LEAVES}:
        return left
    return accused


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", STATES, ids=str)
def test_who_has_come_while_one_looked_is_not_waited_for_nor_blamed(kind, first):
    """Nobody had come before. When this device has looked who is gone, others are so; it may have seen their ends."""
    for after in ((first, second) for second in STATES):
        one = kind(timeout=0.002)
        one.be([(False, 0, False)] * 2)
        name = "look" if kind is OnPages else "fault"
        look = getattr(one, name)

        def meanwhile(one=one, look=look, after=after):
            one.be([(False, end, dead) for _, end, dead in after])
            try:
                return look()
            finally:
                one.be(after)

        setattr(one, name, meanwhile)
        assert (lost_of(one) is None) == all(came for came, *_ in after), after


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", STATES, ids=str)
def test_a_meeting_ends_where_all_have_come_or_will_not(kind, first):
    for states in ((first, second) for second in STATES):
        one = kind(timeout=0.002)
        one.be(states)
        lost, missing = lost_of(one), {d for d, (came, *_) in zip(OTHERS, states, strict=True) if not came}
        if not missing:
            assert lost is None, states
            continue
        gone = {d for d in missing if dict(zip(OTHERS, states, strict=True))[d][1] >= peers.LEAVES}
        assert set(lost.devices) == (at_fault(states) or gone or missing), states
        assert ("within" in str(lost)) == (not at_fault(states) and not gone), states
