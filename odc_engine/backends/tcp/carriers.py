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

from odc_engine.backends.tcp.sockets import end

_REQUEST = struct.Struct("<iqq")  # what, from which byte of the arena on, and how many
_FETCH, _SEND, _FLUSH = range(3)


class Asker:
    """For one thread at a time."""

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        self.connection = connection
        connection.settimeout(timeout)

    def ask(self, start: int, nbytes: int) -> None:
        """For bytes that `read` then takes, in the order in which they are asked for."""
        give(self.connection, _REQUEST.pack(_FETCH, start, nbytes))

    def read(self, into: Tensor) -> None:
        receive(self.connection, bytes_in(into))

    def send(self, start: int, data: Tensor) -> None:
        give(self.connection, _REQUEST.pack(_SEND, start, data.numel()))
        give(self.connection, bytes_in(data))

    def flush(self) -> None:
        give(self.connection, _REQUEST.pack(_FLUSH, 0, 0))

    def flushed(self) -> None:
        receive(self.connection, memoryview(bytearray(1)))


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
            receive(connection, request)
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
        receive(connection, part)
    else:
        connection.sendall(b"\0")


def give(connection: socket.socket, data: bytes | memoryview) -> None:
    """All of it. The limit is for each piece that goes: `sendall` would take it for the whole, be it gigabytes."""
    left = memoryview(data)
    while left:
        left = left[connection.send(left) :]


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fill it. Raises OSError where nothing comes any more."""
    came = 0
    while came < len(into):
        more = connection.recv_into(into[came:])
        if not more:
            raise ConnectionResetError("the other end has left")
        came += more


def bytes_in(data: Tensor) -> memoryview:
    return data.detach().numpy().data
