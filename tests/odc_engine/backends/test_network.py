"""Devices of several machines: meetings, a count that all share, who is missing, and one clock for all. Here the
machines are one."""

import re
import socket
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from odc_engine.backends import patience
from odc_engine.backends.base import COMM, MAIN
from odc_engine.backends.collectives import watched
from odc_engine.backends.network import Network
from odc_engine.backends.tcp import links
from odc_engine.backends.tcp.sockets import break_when_unanswered, end
from odc_engine.devices import clocks
from odc_engine.errors import PeerLost


def told(call) -> tuple[list[int], str]:
    try:
        found = call()
    except PeerLost as lost:
        found = lost
    return (found.devices, str(found)) if isinstance(found, PeerLost) else ([], str(found))


def met(rank):
    net = Network()
    if rank == 1:
        time.sleep(0.3)
    came = time.monotonic()
    net.meet(MAIN)
    left = time.monotonic()
    net.close()
    return came, left


def test_nobody_goes_on_before_all_have_come(pools):
    came, left = zip(*pools(3).run(met), strict=True)  # one machine has one monotonic clock
    assert min(left) >= max(came)


def met_in_other_rooms(rank):
    net = Network(timeout=1.0)
    for room in (MAIN, COMM) if rank else (COMM, MAIN):
        threading.Thread(target=net.meet, args=(room,), daemon=True).start()
        time.sleep(0.1)
    net.meet(MAIN)
    net.close()
    return True


def test_rooms_are_met_in_independently(pools):
    assert pools(2).run(met_in_other_rooms) == [True] * 2


def one_does_not_come(rank):
    net = Network(timeout=0.5)
    found = told(lambda: net.meet(MAIN)) if rank != 2 else time.sleep(1.0)
    net.close()
    return found


def test_who_does_not_come_is_named_by_all_others(pools):
    found = pools(3).run(one_does_not_come)
    for devices, line in found[:2]:
        assert devices == [2]
        told_first, told_next = "synchronize within 0.5 s", "answer another device in time"
        longer = "wait longer with --timeout, or timeout= of OnDemand"
        assert re.fullmatch(rf"device 2 did not ({told_first}|{told_next}) \(pid \d+ on \S+\); {longer}", line)


def one_fails(rank):
    net = Network()
    if rank == 1:
        net.fail(RuntimeError("out of memory"))
        return None
    if rank == 2:
        time.sleep(0.3)
    found = told(lambda: net.meet(MAIN))
    net.close()
    return found


def test_who_says_that_it_fails_is_named(pools):
    found = pools(3).run(one_fails)
    assert found[0] == found[2] == ([1], "device 1 failed: its own error says why")


def cut(net):
    """As the system does it for a process that dies."""
    for each in net.links._sockets.values():
        end([each])


def one_dies(rank):
    net = Network()
    if rank == 1:
        cut(net)
        return None
    if rank == 2:
        time.sleep(0.8)  # until who has found it out has left for it
    found = told(lambda: net.meet(MAIN))
    cut(net)
    return found


def test_who_dies_is_named_and_not_who_ends_for_it(pools):
    """It is device 0, too, that may die: no store lives with it."""
    found = pools(3).run(one_dies)
    assert [devices for devices, _ in (found[0], found[2])] == [[1], [1]]
    assert re.fullmatch(r"device 1 died \(pid \d+ on \S+\)", found[2][1])


def one_dies_in_a_collective(rank):
    group = dist.new_group(timeout=timedelta(minutes=5))
    net = Network()
    dist.barrier()
    if rank == 1:
        cut(net)
        return None
    found = told(lambda: watched(dist.all_reduce(torch.zeros(4), group=group, async_op=True), net))
    net.close()
    return found


def test_who_dies_is_named_where_a_collective_would_wait_for_it(pools):
    devices, line = pools(2).run(one_dies_in_a_collective)[0]
    assert devices == [1]
    assert "died" in line


def all_but_one_die(rank):
    net = Network()
    if rank != 1:
        cut(net)
        return None
    found = told(lambda: net.meet(MAIN))
    net.close()
    return found


def test_all_who_die_at_once_are_named_together(pools):
    assert pools(3).run(all_but_one_die)[1][0] == [0, 2]


def one_leaves(rank):
    net = Network()
    if rank == 1:
        net.close()
        return None
    found = told(lambda: net.meet(MAIN))
    net.close()
    return found


def test_who_leaves_too_early_is_named(pools):
    found = pools(3).run(one_leaves)
    assert found[0] == found[2] == ([1], f"device 1 {links.LEFT_EARLY}")


def one_comes_last_and_leaves(rank):
    """Its two words come while this device looks who is missing."""
    net = Network()
    found = links.LEFT_EARLY
    if rank == 0:
        missing = net.links._missing

        def slowly(room, count):
            found = missing(room, count)
            hearing = threading.Thread(target=hear)
            hearing.start()
            hearing.join(0.2)
            return found

        def hear():
            net.links._take_in(1, links._CAME, MAIN, 1)
            net.links._take_in(1, links._ENDS, links.LEFT, 0)

        net.links._missing = slowly
        found = told(lambda: net.links._look_for(MAIN, 1, patience.Patience()))
    dist.barrier()
    net.close()
    return found


def test_who_comes_and_leaves_at_once_has_not_left_early(pools):
    assert pools(2).run(one_comes_last_and_leaves)[0] == ([], "None")


def one_stands_still(rank):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "BEAT", 1e5 if rank == 1 else 0.1)  # nothing of it runs
        patch.setattr(links, "STILL", 0.5)
        net = Network(timeout=2.0)
        found = told(lambda: net.meet(MAIN)) if rank == 0 else time.sleep(3.0)
    net.close()
    return found


@pytest.mark.slow
def test_of_those_who_do_not_come_who_stands_still_is_named(pools):
    devices, line = pools(3).run(one_stands_still)[0]
    assert devices == [1]
    assert re.search(r"no word for \d s, stopped", line)


def one_is_mute(rank, seconds):
    """All are patient: seconds are cut down, all but those of a silent device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "HALTED", 0.5)
        patch.setattr(patience, "LOOK_UP", 0.1)
        patch.setattr(links, "MUTE", seconds)
        patch.setattr(links, "STILL", seconds)
        patch.setattr(links, "BEAT", 0.2 if rank == 0 else 1e5)  # nothing of it runs; a selector takes no 1e9
        net = Network(timeout=600.0)
        began = time.monotonic()
        found = told(lambda: net.meet(MAIN)) if rank == 0 else time.sleep(2.0)
        waited = time.monotonic() - began
        if rank == 1 and seconds > 1:
            net.meet(MAIN)
    net.close()
    return found, waited


def test_who_says_nothing_for_long_is_named_long_before_the_timeout(pools):
    (devices, line), _ = pools(2).run(one_is_mute, 0.5)[0]
    assert devices == [1]
    assert re.search(r"did not synchronize within 0.5 s: no word for \d s, stopped", line)


def test_who_says_nothing_for_a_while_is_waited_for(pools):
    (found, waited), _ = pools(2).run(one_is_mute, 30.0)
    assert found == ([], "None")
    assert waited > 1.9


@pytest.mark.parametrize(
    ("quiet", "since_answers", "stopped"),
    [(20.0, None, []), (30.0, None, [1]), (100.0, 0.0, []), (100.0, 50.0, []), (100.0, 80.0, [1]), (500.0, 240.0, [])],
)
def test_who_may_still_wait_to_repeat_what_was_lost_is_not_taken_for_stopped(pools, quiet, since_answers, stopped):
    assert pools(2).run(quiet_since_an_outage, quiet, since_answers)[0] == stopped


def quiet_since_an_outage(rank, quiet, since_answers):
    """Seconds without a word, and seconds since its machine was last seen not to answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "BEAT", 1e5)
        net = Network()
        dist.barrier()
        time.sleep(0.1)  # the first beats are there
        now = time.monotonic()
        net.links._last[1 - rank] = now - quiet
        if since_answers is not None:
            net.links._unanswered[1 - rank] = now - since_answers
        found = net.stopped()
        dist.barrier()
    net.close()
    return found


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
            found = told(lambda: net.meet(MAIN))
        else:
            found = told(lambda: LAST_WORDS[last](net))
        dist.barrier()
    net.close()
    return found


LAST_WORDS = {
    "meets": lambda net: net.meet(MAIN),
    "takes": lambda net: (net.take(), net.meet(MAIN))[0],
    "fails": lambda net: net.fail(RuntimeError("out of memory")),
    "leaves": lambda net: net.close(),
}


@pytest.mark.parametrize(
    ("last", "heard"),
    [
        ("meets", ([], "None")),
        ("takes", ([], "None")),
        ("fails", ([1], "device 1 failed: its own error says why")),
        ("leaves", ([1], f"device 1 {links.LEFT_EARLY}")),
    ],
)
def test_no_word_is_lost_where_a_connection_has_no_room(pools, last, heard):
    found = pools(2).run(more_words_than_there_is_room_for, last)
    assert found[0] == heard
    assert found[1] == ([], "0" if last == "takes" else "None")


def half_a_word(rank):
    """From device 0; the rest of it comes much later. Device 2 fails meanwhile."""
    net = Network(timeout=10.0)
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
        found = told(lambda: net.meet(MAIN)) if rank == 1 else None
        dist.barrier()
    dist.barrier()
    until = time.monotonic() + 10.0
    while rank == 1 and net.links._came[0][COMM] != 7 and time.monotonic() < until:
        time.sleep(0.02)
    came = net.links._came[0][COMM]
    dist.barrier()
    net.close()
    return (found, came) if rank == 1 else None


def test_others_are_heard_while_the_rest_of_a_word_is_on_its_way(pools):
    assert pools(3).run(half_a_word)[1] == (([2], "device 2 failed: its own error says why"), 7)


def one_still_computes(rank):
    net = Network()
    if rank == 2:
        time.sleep(0.5)
    found = net.explain()
    net.close()
    return found


def test_who_still_computes_is_not_blamed(pools):
    assert pools(3).run(one_still_computes) == [None] * 3


def some_lose_one(rank):
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    net = Network(group, timeout=0.5)
    found = told(lambda: net.meet(MAIN)) if rank == 1 else time.sleep(1.0)
    net.close()
    return found


def test_a_part_of_all_names_ranks_among_all(pools):
    assert pools(3).run(some_lose_one)[1][0] == [2]


def taken(rank):
    nets = [Network(), Network()]  # of two models, say
    found = [[net.take() for _ in range(5)] for net in nets]
    for net in nets:
        net.meet(MAIN)
        if rank == 1:
            net.refill()
        net.meet(MAIN)
    again = nets[0].take()
    for net in nets:
        net.meet(MAIN)
        net.close()
    return found, again


def test_each_number_is_taken_once_and_counts_are_apart(pools):
    found = pools(3).run(taken)
    for net in range(2):
        assert sorted(number for numbers, _ in found for number in numbers[net]) == list(range(15))
    assert sorted(again for _, again in found) == [0, 1, 2]


def threads_left(_rank):
    net = Network()
    net.meet(MAIN)
    net.close()
    net.close()
    waited = time.monotonic() + 5.0
    while "odc-links" in (names := [each.name for each in threading.enumerate()]) and time.monotonic() < waited:
        time.sleep(0.02)
    return names


def test_nothing_runs_when_all_have_left(pools):
    assert all("odc-links" not in names for names in pools(2).run(threads_left))


def clock_behind(rank):
    return clocks.offset(clock=lambda: time.perf_counter() - 100.0 * rank)


def test_clocks_are_read_against_device_0_s(pools):
    """To half of what an answer takes, which on a loaded machine is some milliseconds."""
    assert pools(3).run(clock_behind) == pytest.approx([0.0, 100.0, 200.0], abs=0.1)
