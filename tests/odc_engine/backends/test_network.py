"""Devices of several machines, as words between them tell: what is special to a network. Here the machines are one."""

import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from transports import lost

from odc_engine.backends import machines, patience
from odc_engine.backends.base import COMM, MAIN
from odc_engine.backends.collectives import watched
from odc_engine.backends.network import Network
from odc_engine.backends.tcp import links
from odc_engine.backends.tcp.sockets import break_when_unanswered, end
from odc_engine.devices import clocks


def cut(net):
    """As the system does it for a process that dies."""
    for each in net.links._sockets.values():
        end([each])


def some_die(rank, who, where):
    group = dist.new_group(timeout=timedelta(minutes=5))
    net = Network()
    dist.barrier()
    if rank in who:
        return cut(net)
    if rank == 2:
        time.sleep(0.8)  # until who has found it out has left for it
    if where == "collective":
        found = lost(lambda: watched(dist.all_reduce(torch.zeros(4), group=group, async_op=True), net))
    else:
        found = lost(lambda: net.meet(MAIN))
    cut(net)
    return found


@pytest.mark.parametrize(
    ("who", "where", "found"),
    [((1,), "meeting", [[1], None, [1]]), ((0, 2), "meeting", [None, [0, 2], None]),
     ((1,), "collective", [[1], None, [1]])],
)  # fmt: skip
def test_who_dies_is_named_and_not_who_ends_for_it(pools, who, where, found):
    """All that die at once together; and device 0, too, may die: no store lives with it."""
    assert pools(3).run(some_die, who, where) == found


def one_is_mute(rank, seconds, timeout):
    """Of those who do not come nothing of device 1 runs. Seconds are cut down, all but those of a silent device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "HALTED", 0.5)
        patch.setattr(patience, "LOOK_UP", 0.1)
        patch.setattr(links, "MUTE", seconds)
        patch.setattr(links, "STILL", seconds)
        patch.setattr(links, "BEAT", 1e5 if rank == 1 else 0.1)  # a selector takes no 1e9
        net = Network(timeout=timeout)
        began = time.monotonic()
        found = lost(lambda: net.meet(MAIN)) if rank == 0 else time.sleep(2.0)
        waited = time.monotonic() - began
        if rank and seconds > 1:
            net.meet(MAIN)
        dist.barrier()
    net.close()
    return found, waited


@pytest.mark.parametrize(
    ("seconds", "timeout", "named", "least", "most"),
    [(0.5, 600.0, [1], 0.5, 1.9), (0.5, 1.0, [1], 0.5, 1.9), (30.0, 600.0, [], 1.9, 20.0)],
)
def test_who_says_nothing_for_long_is_named_long_before_the_timeout(pools, seconds, timeout, named, least, most):
    found, waited = pools(3).run(one_is_mute, seconds, timeout)[0]
    assert found == named
    assert least < waited < most


# Seconds without a word, and since its machine was last seen not to answer: whether a device is taken for stopped.
QUIET = [(20.0, None, False), (30.0, None, True), (100.0, 0.0, False), (100.0, 50.0, False), (100.0, 80.0, True),
         (500.0, 240.0, False)]  # fmt: skip


def quiet_since_an_outage(rank):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "BEAT", 1e5)
        net = Network()
        dist.barrier()
        time.sleep(0.1)  # the first beats are there
        found = []
        for quiet, since_answers, _ in QUIET:
            now = time.monotonic()
            net.links._last[1 - rank] = now - quiet
            net.links._unanswered[1 - rank] = 0.0 if since_answers is None else now - since_answers
            found.append((net.stopped(), links.DOWN in str(net.silent([1 - rank], "did nothing"))))
        dist.barrier()
    net.close()
    return found


def test_who_may_still_wait_to_repeat_what_was_lost_is_not_taken_for_stopped(pools):
    expected = [([1] * stopped, since is not None) for _, since, stopped in QUIET]
    assert pools(2).run(quiet_since_an_outage)[0] == expected


def test_seconds_without_a_network_and_as_many_again_do_not_count(monkeypatch):
    peers = SimpleNamespace(timeout=0.1, stopped=list)
    one, other = patience.Patience(), patience.Patience()
    monkeypatch.setitem(patience.outages, "a network", 100.0)
    time.sleep(0.2)
    assert one.over(peers, [1]) == 0.0
    monkeypatch.delitem(patience.outages, "a network")
    assert one.over(peers, [1]) == 0.0
    assert other.over(peers, [1]) == 0.1  # it has not seen any


@pytest.mark.parametrize("timeout", [0.5, 3.0, 60.0, 1800.0, 1e9])
def test_a_connection_lasts_for_the_timeout_and_until_something_is_repeated(timeout):
    with socket.socket() as made:
        break_when_unanswered(made, timeout)
        lasts = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
    assert lasts > min(timeout + min(timeout, 120.0), 2e6)
    assert lasts < timeout + min(timeout, 120.0) + 5.0


LAST_WORDS = {
    "meets": lambda net: net.meet(MAIN),
    "takes": lambda net: (net.take(), net.meet(MAIN))[0],
    "fails": lambda net: net.fail(RuntimeError("out of memory")),
    "leaves": lambda net: net.close(),
}


def more_words_than_there_is_room_for(rank, last):
    """Device 1's, while device 0 hears nothing, as when the cable is out."""
    hears, hear = threading.Event(), links.Links._hear
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(links.Links, "_hear", lambda net, device: hears.wait() and hear(net, device))
        net = Network(timeout=10.0)
        if rank == 1:
            net.links._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
            for _ in range(60_000):
                net.links._tell(links._BEATS)
        dist.barrier()
        if rank == 0:
            threading.Timer(0.3, hears.set).start()
        found = lost(lambda: net.meet(MAIN)) if rank == 0 else LAST_WORDS[last](net)
        dist.barrier()
    net.close()
    return found


@pytest.mark.parametrize(
    ("last", "heard"), [("meets", [[], None]), ("takes", [[], 0]), ("fails", [[1], None]), ("leaves", [[1], None])]
)
def test_no_word_is_lost_where_a_connection_has_no_room(pools, last, heard):
    assert pools(2).run(more_words_than_there_is_room_for, last) == heard


def half_a_word(rank):
    """From device 0; the rest of it comes much later. Device 2 fails meanwhile."""
    net, found = Network(timeout=10.0), None
    word = links._WORD.pack(links._CAME, COMM, 7)
    if rank == 0:
        time.sleep(0.1)
        with net.links._telling:
            net.links._sockets[1].send(word[:5])
            dist.barrier()
            dist.barrier()
            net.links._sockets[1].send(word[5:])
    else:
        dist.barrier()
        if rank == 2:
            time.sleep(0.3)
            net.fail(RuntimeError("out of memory"))
        found = lost(lambda: net.meet(MAIN)) if rank == 1 else None
        dist.barrier()
    dist.barrier()
    until = time.monotonic() + 10.0
    while rank == 1 and net.links._came[0][COMM] != 7 and time.monotonic() < until:
        time.sleep(0.02)
    came = net.links._came[0][COMM]
    dist.barrier()
    net.close()
    return found, came


def test_others_are_heard_while_the_rest_of_a_word_is_on_its_way(pools):
    assert pools(3).run(half_a_word)[1] == ([2], 7)


def clock_behind(rank):
    return clocks.offset(clock=lambda: time.perf_counter() - 100.0 * rank)


def test_clocks_are_read_against_device_0_s(pools):
    """To half of what an answer takes, which on a loaded machine is some milliseconds."""
    assert pools(3).run(clock_behind) == pytest.approx([0.0, 100.0, 200.0], abs=0.1)


def test_a_machine_is_a_boot_with_its_pids_and_its_network_and_reaches_runs_of_devices(monkeypatch):
    mine, spaces = machines.here(), {kind: Path(f"/proc/self/ns/{kind}").readlink() for kind in ("pid", "net")}
    assert mine == machines.here()
    for other in spaces:
        monkeypatch.setattr(Path, "readlink", lambda at, of=spaces | {other: "another"}: of[at.name])
        assert machines.here() != mine
    assert machines.runs((0, 0, 1, 0)) == (range(2), range(2), range(2, 3), range(3, 4))
