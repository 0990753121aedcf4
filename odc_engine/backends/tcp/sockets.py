"""Connections between devices, made at once by all of them.

A port is open while they are made, on one interface, and for whoever brings the secret that devices have told each
other through their process group. Afterwards nobody can connect any more.
"""

import errno
import fcntl
import os
import secrets
import selectors
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from weakref import WeakSet

import torch.distributed as dist

from odc_engine.backends.collectives import agreed, way_out
from odc_engine.backends.patience import Patience, until_repeated
from odc_engine.backends.tcp.address import FIX, own
from odcsim.errors import InputError

COMES = 20.0  # seconds that a device waits for another to connect
GREETS = 1.0  # and for the rest of a greeting, which is one packet
ANSWERS = 2.0  # seconds after which what answers nothing may be a network that is away: everybody speaks each second
_LAST_ANSWER = 56  # tcp_info: how many milliseconds ago
_HELLO = struct.Struct("<32sii")
_BACKLOG = 4096
_open: WeakSet[socket.socket] = WeakSet()


def _close_copies() -> None:
    """In a forked process, a data loader's worker, say: who waits for this one's parent would not hear of its death as
    long as a child has the other end, too."""
    for each in _open:
        each.close()


os.register_at_fork(after_in_child=_close_copies)


@dataclass(frozen=True, slots=True)
class _Entrance:
    address: str
    port: int
    secret: bytes


def connect(group: dist.ProcessGroup | None, count: Callable[[int], int]) -> dict[int, list[socket.socket]]:
    """`count`: of connections to another device, the same number as that one says of this. Of each device a list, in
    the order that both have of them."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    with ExitStack() as opened:
        listener, door = agreed(group, _listen)
        opened.enter_context(listener)
        doors = [door] * size
        dist.all_gather_object(doors, door, group=group)
        below, above = range(rank), range(rank + 1, size)
        made: dict[int, list[socket.socket]] = {}

        def attempt() -> dict[int, list[socket.socket]]:
            for device in below:
                made[device] = []
                for number in range(count(device)):
                    made[device].append(_call(device, doors[device], rank, number))
            made.update(_answered(listener, door, {device: count(device) for device in above}))
            return made

        with _closing_on_error(lambda: chain.from_iterable(made.values())):
            return agreed(group, attempt)


def _listen() -> tuple[socket.socket, _Entrance]:
    at = own()
    try:
        family = socket.AF_INET6 if ":" in at else socket.AF_INET
        listener = socket.create_server((at, 0), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(f"no port at {at} ({error.strerror})", fix=way_out(error, FIX)) from None
    return listener, _Entrance(at, listener.getsockname()[1], secrets.token_bytes(32))


def _call(device: int, door: _Entrance, rank: int, number: int) -> socket.socket:
    try:
        made = socket.create_connection((door.address, door.port), timeout=COMES)
        made.sendall(_HELLO.pack(door.secret, rank, number))
    except OSError as error:
        problem = f"device {device} cannot be reached at {door.address} ({error.strerror or error})"
        raise InputError(problem, fix=way_out(error, FIX)) from None
    return _ready(made)


def _answered(listener: socket.socket, door: _Entrance, expected: dict[int, int]) -> dict[int, list[socket.socket]]:
    """No device is waited for longer because strangers come, or say nothing."""
    came: dict[tuple[int, int], socket.socket] = {}
    wanted = {(device, number) for device, count in expected.items() for number in range(count)}
    patience = Patience()
    with closing(_Callers(listener)) as callers, _closing_on_error(came.values):
        while missing := wanted - set(came):
            if patience.ended(COMES):
                who = ", ".join(map(str, sorted({device for device, _ in missing})))
                raise InputError(f"devices {who} did not connect to {door.address} within {COMES:g} s", fix=FIX)
            for caller in callers.that_speak(COMES - patience.used):
                if (who_and_which := _greeting(caller, door.secret)) in missing:
                    came[who_and_which], patience = _ready(caller), Patience()
                else:
                    caller.close()  # a stranger
    return {device: [came[device, number] for number in range(count)] for device, count in expected.items()}


class _Callers:
    """Who has come to a listener and has not said yet who it is."""

    def __init__(self, listener: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)
        self._silent: set[socket.socket] = set()

    def that_speak(self, limit: float) -> list[socket.socket]:
        """They are whoever called's to close."""
        ready = {key.fd for key, _ in self._selector.select(max(0.0, limit))}
        if self._listener.fileno() in ready:
            self._let_in()
        speaking = [caller for caller in self._silent if caller.fileno() in ready]
        for caller in speaking:
            self._selector.unregister(caller)
        self._silent.difference_update(speaking)
        return speaking

    def _let_in(self) -> None:
        try:
            caller, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # it stays at the door
            return  # it has left again
        self._silent.add(caller)
        self._selector.register(caller, selectors.EVENT_READ)

    def close(self) -> None:
        self._selector.close()
        for caller in self._silent:
            caller.close()


def _greeting(caller: socket.socket, secret: bytes) -> tuple[int, int]:
    caller.settimeout(GREETS)
    try:
        told, rank, number = _HELLO.unpack(caller.recv(_HELLO.size, socket.MSG_WAITALL))
    except (OSError, struct.error):
        return -1, -1
    return (rank, number) if secrets.compare_digest(told, secret) else (-1, -1)


def _ready(made: socket.socket) -> socket.socket:
    _open.add(made)
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def break_when_unanswered(made: socket.socket, timeout: float) -> None:
    """The system ends it where what was sent is not acknowledged. That is its word for who reads, stopped or not."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        limit = int(min(1000 * until_repeated(timeout), 2**31 - 1))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)


def on_the_way(made: socket.socket) -> bool:
    """Whether something has been sent that the system at the other end has not got yet."""
    try:
        return sys.platform == "linux" and any(fcntl.ioctl(made, termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):  # another thread has closed it
        return False


def unanswered(made: socket.socket) -> bool:
    """Whether the system at the other end has not acknowledged anything lately, though there is something."""
    if sys.platform != "linux":
        return False
    told = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ANSWER + 4)
    return on_the_way(made) and struct.unpack_from("=I", told, _LAST_ANSWER)[0] > 1000 * ANSWERS


def end(made: Sequence[socket.socket]) -> None:
    """Whoever waits for it, here or there, hears of it."""
    for one in made:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # the other end was quicker


@contextmanager
def _closing_on_error(made: Callable[[], Iterable[socket.socket]]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for one in made():
            one.close()
        raise
