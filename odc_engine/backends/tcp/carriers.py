"""Bytes of arenas, carried between two devices: one asks, and a thread of the other's reads and writes its arena.

A device that computes need not do anything for it: torch leaves Python to other threads meanwhile, and so do sockets.
What is sent is not answered; `flush` is, when all before it has been written.
"""

import atexit
import socket
import struct
import threading
from collections.abc import Callable

from torch import Tensor

from odc_engine.backends.patience import LOOK_UP, Patience
from odc_engine.backends.tcp.sockets import end

_REQUEST = struct.Struct("<iqq")  # what, from which byte of the arena on, and how many
_FETCH, _SEND, _FLUSH = range(3)


class Asker:
    """For one thread at a time. `look`: called now and then as long as nothing moves. It raises to end that."""

    def __init__(self, connection: socket.socket, look: Callable[[Patience], None]) -> None:
        self.connection, self._look = connection, look
        connection.settimeout(LOOK_UP)

    def ask(self, start: int, nbytes: int) -> None:
        """For bytes that `read` then takes, in the order in which they are asked for."""
        self._give(_REQUEST.pack(_FETCH, start, nbytes))

    def read(self, into: Tensor) -> None:
        self._receive(bytes_in(into))

    def send(self, start: int, data: Tensor) -> None:
        self._give(_REQUEST.pack(_SEND, start, data.numel()))
        self._give(bytes_in(data))

    def flush(self) -> None:
        self._give(_REQUEST.pack(_FLUSH, 0, 0))

    def flushed(self) -> None:
        self._receive(memoryview(bytearray(1)))

    def _give(self, data: bytes | memoryview) -> None:
        move(self.connection.send, memoryview(data), self._look)

    def _receive(self, into: memoryview) -> None:
        move(self.connection.recv_into, into, self._look)


_serving: dict[socket.socket, threading.Thread] = {}


def serve(connection: socket.socket, arena: Tensor, failed: Callable[[Exception], None]) -> None:
    """Do what the device at the other end asks for until it leaves, by a thread that keeps the arena so long."""
    for ended in [each for each, thread in _serving.items() if not thread.is_alive()]:
        del _serving[ended]
    thread = threading.Thread(target=_serve, args=(connection, arena, failed), name="odc-serves", daemon=True)
    _serving[connection] = thread
    thread.start()


@atexit.register
def stop_serving() -> None:
    """End all of it: a thread that frees its arena while Python itself ends takes the process down (SIGABRT)."""
    for connection, thread in list(_serving.items()):
        end([connection])
        thread.join()


def _serve(connection: socket.socket, arena: Tensor, failed: Callable[[Exception], None]) -> None:
    memory, request = bytes_in(arena), memoryview(bytearray(_REQUEST.size))
    try:
        while True:
            move(connection.recv_into, request)
            _answer(connection, memory, *_REQUEST.unpack(request))
    except OSError:
        pass  # it has left, or is lost: who waits for it says so
    except Exception as error:
        failed(error)
    finally:
        connection.close()


def _answer(connection: socket.socket, memory: memoryview, what: int, start: int, nbytes: int) -> None:
    part = memory[start : start + nbytes]
    if start < 0 or len(part) != nbytes:
        raise ValueError(f"bytes {start} to {start + nbytes} of an arena of {len(memory)}")
    if what == _FETCH:
        connection.sendall(part)
    elif what == _SEND:
        move(connection.recv_into, part)
    else:
        connection.sendall(b"\0")


def move(some: Callable[[memoryview], int], left: memoryview, look: Callable[[Patience], None] | None = None) -> None:
    """All of it, by a call that moves some. Raises OSError where nothing moves any more. Patience is for each piece
    that goes: `sendall` would take it for the whole, be it gigabytes."""
    patience = Patience()
    while left:
        try:
            moved = some(left)
        except TimeoutError as error:
            if look is None or error.errno:  # the system has given it up
                raise
            look(patience)
            continue
        if not moved:
            raise ConnectionResetError("the other end has left")
        left, patience = left[moved:], Patience()


def bytes_in(data: Tensor) -> memoryview:
    return data.detach().numpy().data
