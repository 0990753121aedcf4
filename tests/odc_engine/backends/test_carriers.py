"""One connection on which bytes of an arena are carried: slowly, in part, and where it asks for what is not there."""

import socket
import threading
import time

import pytest
import torch

from odc_engine.backends.tcp import carriers
from odc_engine.backends.tcp.carriers import Asker, bytes_in, move, serve

TIMEOUT = 0.3
PIECE = 1 << 16


@pytest.fixture
def pair():
    ends = socket.socketpair()
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
    yield ends
    for each in ends:
        each.close()


def look(patience):
    if patience.ended(TIMEOUT):
        raise TimeoutError


def test_a_slow_network_is_waited_for_as_long_as_something_moves(pair):
    """The limit is for a silence, and not for all of what may be gigabytes."""
    here, there = pair
    data = torch.arange(30 * PIECE, dtype=torch.int32).view(torch.uint8)[: 30 * PIECE]
    found = bytearray(carriers._REQUEST.size + len(data))

    def read():
        for start in range(0, len(found), 2 * PIECE):
            move(there.recv_into, memoryview(found)[start : start + 2 * PIECE])
            time.sleep(TIMEOUT / 6)

    reader = threading.Thread(target=read)
    reader.start()
    began = time.monotonic()
    Asker(here, look).send(0, data)
    reader.join()
    assert time.monotonic() - began > TIMEOUT
    assert found[carriers._REQUEST.size :] == bytes_in(data)


@pytest.mark.parametrize("way", ["send", "read"])
def test_who_looks_says_how_long_nothing_may_move(pair, monkeypatch, way):
    looks = []
    monkeypatch.setattr(carriers, "LOOK_UP", 0.02)

    def three_times(patience):
        looks.append(patience.used)
        if len(looks) == 3:
            raise KeyError("enough")

    asker = Asker(pair[0], three_times)
    with pytest.raises(KeyError):
        asker.send(0, torch.zeros(1 << 24, dtype=torch.uint8)) if way == "send" else asker.read(torch.zeros(4).byte())
    assert looks == sorted(looks)
    assert len(looks) == 3


@pytest.mark.parametrize(("start", "nbytes"), [(-20, 10), (-5, 5), (90, 20), (200, 10), (0, -1)])
def test_nothing_is_read_beyond_an_arena(pair, start, nbytes):
    here, there = pair
    failed = []
    serve(there, torch.zeros(100, dtype=torch.uint8), failed.append)
    asker = Asker(here, look)
    asker.ask(start, nbytes)
    with pytest.raises(ConnectionResetError):
        move(here.recv_into, memoryview(bytearray(1)))
    assert [type(error) for error in failed] == [ValueError]
