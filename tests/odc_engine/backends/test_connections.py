"""Connections between devices: made at once by all, open to nobody else, refused by all where one cannot have them."""

import errno
import os
import socket
import struct
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from transports import refused

from odc_engine.backends.tcp import address, sockets
from odcsim.errors import InputError


def with_a_stranger(rank):
    """It comes first, to the port of device 0, and brings no secret."""
    doors, listen, strangers = [], sockets._listen, []

    def listening():
        listener, door = listen()
        doors.append(door)
        if rank == 0:
            strangers.append(socket.create_connection((door.address, door.port), timeout=10))
            strangers[0].sendall(sockets._HELLO.pack(b"guess", 1, 0))
        return listener, door

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sockets, "_listen", listening)
        made = sockets.connect(None, lambda _: 2)
    for device, several in made.items():
        several[1].sendall(bytes([rank, device]))
    heard = {device: several[1].recv(2) for device, several in made.items()}
    dist.barrier()
    with pytest.raises(ConnectionRefusedError):  # nobody is let in afterwards
        socket.create_connection((doors[0].address, doors[0].port)).close()
    told = [stranger.recv(1) for stranger in strangers]
    for each in [one for several in made.values() for one in several] + strangers:
        each.close()
    return heard, told


def test_a_stranger_is_not_let_in_and_afterwards_nobody(pools):
    for rank, (heard, told) in enumerate(pools(3).run(with_a_stranger)):
        assert heard == {other: bytes([other, rank]) for other in range(3) if other != rank}
        assert told in ([], [b""])  # its connection was ended


@pytest.mark.parametrize("says", [b"", b"guess"], ids=["nothing", "something"])
def test_strangers_that_come_again_and_again_are_not_waited_for(monkeypatch, says):
    """Nor does one that says nothing keep a device from being heard."""
    monkeypatch.setattr(sockets, "COMES", 0.4)
    monkeypatch.setattr(sockets, "own", lambda: "127.0.0.1")
    listener, door = sockets._listen()
    over, callers = threading.Event(), []

    def come():
        until = time.monotonic() + 5.0
        while not over.is_set() and time.monotonic() < until:
            callers.append(socket.create_connection((door.address, door.port)))
            callers[-1].sendall(says)
            if says:
                callers[-1].shutdown(socket.SHUT_WR)
            time.sleep(0.1)
        return over.is_set()

    with ThreadPoolExecutor(1) as strangers, listener:  # who comes to a closed door is refused
        ended = strangers.submit(come)
        callers.append(sockets._call(0, door, 1, 0))
        with pytest.raises(InputError, match="devices 2 "):
            sockets._answered(listener, door, {1: 1, 2: 1})
        over.set()
        assert ended.result()
    for each in callers:
        each.close()


def one_cannot(rank, why):
    """What kind of error each has where device 1 has no number for a caller or no address; and threads that stay."""
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1 and why == "files":
            patch.setattr(socket.socket, "accept", Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
        if rank == 1 and why == "address":
            patch.setenv(address.INTERFACE, "none0")
        before, began = threading.active_count(), time.monotonic()
        found = refused(lambda: sockets.connect(None, lambda _: 1))
        return found, threading.active_count() - before, time.monotonic() - began < sockets.COMES / 2


@pytest.mark.parametrize("why", ["files", "address"])
def test_where_one_cannot_all_are_refused_at_once(pools, why):
    """A caller for whom there is no file stays at the door, so that to look again would find the same."""
    assert pools(3).run(one_cannot, why) == [(kind, 0, True) for kind in ("PeerLost", "InputError", "PeerLost")]


def one_ends_before_its_child(rank):
    """A data loader's worker, which has a copy of all that its parent has open."""
    only = next(iter(sockets.connect(None, lambda _: 1).values()))[0]
    if rank == 1:
        waits, ends = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, where there are threads
            child = os.fork()
        if child == 0:
            os.close(ends)
            os.read(waits, 1)
            os._exit(0)
    only.settimeout(3.0)
    with only:
        heard = only.recv(1) if rank == 0 else b""
    dist.barrier()
    if rank == 1:
        os.close(ends)
        os.close(waits)
        os.waitpid(child, 0)
    return heard


def test_a_connection_ends_with_its_process_though_a_child_lives(pools):
    assert pools(2).run(one_ends_before_its_child) == [b"", b""]


def made_over_ipv6(rank):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sockets, "own", lambda: "::1")
        only = sockets.connect(None, lambda _: 1)[1 - rank][0]
    with only:
        only.sendall(bytes([rank]))
        return only.family == socket.AF_INET6, only.recv(1)


def test_connections_are_made_over_ipv6_too(pools):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6")
    assert address._towards("::1") == "::1"
    assert pools(2).run(made_over_ipv6) == [(True, b"\1"), (True, b"\0")]


@pytest.mark.parametrize(
    ("store", "elsewhere", "found"),
    [
        ("127.0.0.1", "10.0.0.7", "10.0.0.7"),
        ("10.1.0.3", "10.0.0.7", "10.1.0.3"),
        ("127.0.1.1", "127.0.0.1", "127.0.0.1"),
        ("::1", "10.0.0.7", "10.0.0.7"),
        ("fd00::3", "10.0.0.7", "fd00::3"),
        ("::1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_an_address_that_no_other_machine_reaches_is_the_last_one_taken(monkeypatch, store, elsewhere, found):
    """A name of the own machine is often one of 127.0.1.1."""
    monkeypatch.delenv(address.INTERFACE, raising=False)
    monkeypatch.setattr(address, "_store_host", lambda: "head")
    monkeypatch.setattr(address, "_towards", lambda host: store if host == "head" else elsewhere)
    assert address.own() == found


TABLE = """\
fe8000000000000000fc00fffe000001 04 40 20 80     none0
fd000000000000000000000000000002 04 40 00 82     none0
fd000000000000000000000000000003 05 40 00 82     none1
"""


@pytest.mark.parametrize(
    ("interface", "found"), [("lo", "127.0.0.1"), ("lo,none0", "127.0.0.1"), ("none0", "fd00::2"), ("none1", "fd00::3")]
)
def test_an_interface_is_taken_by_its_name(monkeypatch, tmp_path, interface, found):
    """It may have addresses of IPv6 alone. One of its link alone would need the interface's name behind it, which is
    another on each machine."""
    (tmp_path / "table").write_text(TABLE)
    monkeypatch.setattr(address, "_IPV6", tmp_path / "table")
    monkeypatch.setenv(address.INTERFACE, interface)
    assert address.own() == found


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says it")
def test_the_system_says_how_long_ago_the_other_end_acknowledged():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as made:
        made.sendall(b"x")
        listener.accept()[0].close()
        time.sleep(0.05)
        told = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, sockets._LAST_ANSWER + 4)
        assert 0 < struct.unpack_from("=I", told, sockets._LAST_ANSWER)[0] < 60_000
