"""Arenas of processes on several machines: those of a machine's own devices are files that it maps, as under shm, and
those beyond are reached over TCP, each by a thread of their device's.

A device has two connections to each far one, so that what it gathers does not wait for what it pushes, and nothing goes
beyond torch's process group but through these.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock

from torch import Tensor

from odc_engine.backends.base import FarMemory
from odc_engine.backends.collectives import agreed
from odc_engine.backends.machines import runs
from odc_engine.backends.network import Network
from odc_engine.backends.patience import Patience
from odc_engine.backends.shm.files import Mapped, bytes_of, share, unmap
from odc_engine.backends.shm.locks import FileLocks
from odc_engine.backends.shm.memory import check_room
from odc_engine.backends.tcp.carriers import Asker, serve
from odc_engine.backends.tcp.sockets import break_when_unanswered, connect, end
from odc_engine.errors import EngineError, PeerLost

FETCHES, SENDS = "fetched", "sent"
_WAYS = (FETCHES, SENDS)


class TcpMemory(FarMemory, FileLocks):
    """`moved`: bytes that this device has fetched from and sent to far arenas, requests not counted."""

    def __init__(self, host: Network) -> None:
        self.host, self.rank, self.size, self.timeout = host, host.rank, host.size, host.timeout
        self.every_near = runs(host.machines)
        self.moved: Counter[str] = Counter()
        self._files: list[Mapped] = []
        self._arenas: list[Tensor] = []
        self._askers: dict[str, dict[int, Asker]] = {way: {} for way in _WAYS}
        self._locks = {way: Lock() for way in _WAYS}
        self._unflushed: set[int] = set()
        self._error: EngineError | None = None

    @property
    def near(self) -> range:
        return self.every_near[self.rank]

    @property
    def all_near_from_the_start(self) -> bool:
        return self.all_near

    def allocate(self, nbytes: int) -> None:
        first = self.rank == self.near.start
        agreed(self.host.group, lambda: check_room(nbytes * len(self.near)) if first else None)
        self._files = share(self.host.group, nbytes, self.near)
        self._arenas = [bytes_of(file) for file in self._files]
        self._connect()

    def _connect(self) -> None:
        """Of two devices the first asks on the first connections, and serves the others."""
        made = connect(self.host.group, lambda device: 0 if device in self.near else 2 * len(_WAYS))
        for device, connections in made.items():
            half = len(_WAYS)
            asks, serves = connections[:half], connections[half:]
            if device < self.rank:
                asks, serves = serves, asks
            for way, each in zip(_WAYS, asks if connections else (), strict=bool(connections)):
                self._askers[way][device] = Asker(each, partial(self._look_for, device))
            for each in connections:
                break_when_unanswered(each, self.timeout)
            for each in serves:
                serve(each, self.view(self.rank), self._failed)
        self.host.links.broke = lambda device: end(made[device])

    def _failed(self, error: Exception) -> None:
        """What serves others has ended: all hear of it, this device where it looks next."""
        self.host.fail(error)  # before this device notices, and leaves
        self._error = EngineError(f"what others asked for could not be done: {error}")

    def view(self, device: int) -> Tensor:
        return self._arenas[device - self.near.start]

    def fetch(self, device: int, start: int, into: Tensor) -> None:
        self.fetch_all([(device, start, into)])

    def fetch_all(self, places: Sequence[tuple[int, int, Tensor]]) -> None:
        """All are asked before one is waited for. Near ones, of another node on this machine, are read as they lie."""
        remote = [place for place in places if place[0] not in self.near]
        with self._whole(FETCHES):
            for device, start, into in remote:
                with self._naming(device):
                    self._askers[FETCHES][device].ask(start, into.numel())
            for device, start, into in places:
                if device in self.near:
                    into.copy_(self.view(device)[start : start + into.numel()])
            for device, _, into in remote:
                with self._naming(device):
                    self._askers[FETCHES][device].read(into)
                self.moved[FETCHES] += into.numel()

    def send(self, device: int, start: int, data: Tensor) -> None:
        with self._whole(SENDS), self._naming(device):
            self._askers[SENDS][device].send(start, data)
            self._unflushed.add(device)
            self.moved[SENDS] += data.numel()

    def arrive(self) -> None:
        with self._whole(SENDS):
            waited_for, self._unflushed = sorted(self._unflushed), set()
            for device in waited_for:
                with self._naming(device):
                    self._askers[SENDS][device].flush()
            for device in waited_for:
                with self._naming(device):
                    self._askers[SENDS][device].flushed()

    @contextmanager
    def _whole(self, way: str) -> Iterator[None]:
        """A transfer by one thread at a time. Where one is left in the middle, by Ctrl-C in a notebook, say, there is
        no other: the rest of its bytes would be taken for those of the next."""
        with self._locks[way]:
            self.check()
            try:
                yield
            except EngineError as error:
                self._error = error
                raise
            except BaseException as error:
                self._error = EngineError(f"a transfer was broken off ({type(error).__name__})")
                self.host.fail(error)
                raise

    @contextmanager
    def _naming(self, device: int) -> Iterator[None]:
        try:
            yield
        except OSError:
            lost = self.host.links.lost_by(device, "broke a connection")
            self.host.fail(lost)
            raise lost from None

    def _look_for(self, device: int, patience: Patience) -> None:
        if over := patience.over(self.host, [device]):
            lost = self.silent([device], f"moved nothing for {over:g} s")
            self.host.fail(lost)
            raise lost

    def meet(self, room: int) -> None:
        self.check()
        try:
            self.host.meet(room)
        except PeerLost as lost:
            raise self._error or lost from None

    def check(self) -> None:
        if self._error:
            raise self._error
        self.host.check()

    def take(self) -> int:
        return self.host.take()

    def refill(self) -> None:
        self.host.refill()

    def leave(self) -> bool:
        return self.host.leave()

    def stopped(self) -> list[int]:
        return self.host.stopped()

    def silent(self, devices: list[int], what: str) -> PeerLost:
        return self.host.silent(devices, what)

    def fail(self, error: BaseException) -> None:
        self.host.fail(error)

    def close(self) -> None:
        """The own arena stays as long as others may ask for it: until they leave."""
        self._arenas.clear()
        unmap(self._files)
        for askers in self._askers.values():
            for asker in askers.values():
                end([asker.connection])
                asker.connection.close()
            askers.clear()
        self.host.close()
