"""Processes of one machine that share memory: the default transport, and the one every other is compared with.

Locks are byte ranges of an arena's file.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.base import Host
from odc_engine.backends.collectives import agreed
from odc_engine.backends.patience import LIMIT
from odc_engine.backends.shm.files import WAY_OUT, Mapped, bytes_of, share, unmap
from odc_engine.backends.shm.locks import FileLocks
from odc_engine.backends.shm.peers import Peers
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

# By the file system of a version of control groups: the limit, what is used, and what of that is cached files.
_FILES = {
    "cgroup2": ("max", "current", ("active_file", "inactive_file")),
    "cgroup": ("limit_in_bytes", "usage_in_bytes", ("total_active_file", "total_inactive_file")),
}


class SharedMemory(FileLocks, Host):
    """`timeout`: seconds after which a peer that does not synchronize, or holds a lock, is reported.

    Every rank makes one, at the same time. Ranks can synchronize before there is an arena.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = LIMIT) -> None:
        self.group, self.timeout = group, timeout
        self.peers = Peers(group, timeout)
        self.rank, self.size = self.peers.rank, self.peers.size
        self._files: list[Mapped] = []
        self._arenas: list[Tensor] = []

    def allocate(self, nbytes: int) -> None:
        # Device 0 asks for all, before any has taken its part.
        agreed(self.group, lambda: check_room(nbytes * self.size) if self.rank == 0 else None)
        self._files = share(self.group, nbytes)
        self._arenas = [bytes_of(file) for file in self._files]

    def view(self, device: int) -> Tensor:
        return self._arenas[device]

    def take(self) -> int:
        self.check()
        with self._locked(*self.peers.count, "the shared queue"):
            return self.peers.take()

    def refill(self) -> None:
        self.peers.refill()

    def meet(self, room: int) -> None:
        self.peers.meet(room)

    def check(self) -> None:
        self.peers.check()

    def explain(self) -> Exception | None:
        return self.peers.explain()

    def leave(self) -> bool:
        return self.peers.leave()

    def stopped(self) -> list[int]:
        return self.peers.stopped()

    def silent(self, devices: list[int], what: str) -> PeerLost:
        return self.peers.silent(devices, what)

    def fail(self, error: BaseException) -> None:
        self.peers.fail(error)

    def close(self) -> None:
        self._arenas.clear()
        unmap(self._files)
        self.peers.close()


def check_room(nbytes: int) -> None:
    """Refuse arenas that memory cannot hold: the kernel would kill somebody in the middle of training."""
    free = min(_machine_free(), _group_free())
    if nbytes > free:
        raise InputError(
            f"arenas for all devices need {nbytes / 1e9:.1f} GB of shared memory and {free / 1e9:.1f} GB are free",
            fix=WAY_OUT,
        )


def _machine_free() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf  # unknown
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), math.inf)


def _group_free(root: str = "/") -> float:
    """What the control groups of this process may still take (a container's, a Slurm step's): the least of its own and
    of all above it, since each limit holds for all below. Cached files give way."""
    return min((_free(folder, *_FILES[kind]) for kind, folder in _groups(root)), default=math.inf)


def _groups(root: str) -> Iterator[tuple[str, Path]]:
    """The folders of both versions, from where this process is up to the top of what it sees."""
    try:
        told, mounts = (Path(root, "proc/self", name).read_text().splitlines() for name in ("cgroup", "mountinfo"))
    except OSError:
        return
    own = {name: path for line in told for _, names, path in [line.split(":", 2)] for name in names.split(",")}
    for fields in map(str.split, mounts):
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        path = own.get("memory" if kind == "cgroup" else "")
        if kind not in _FILES or path is None or (kind == "cgroup" and "memory" not in options):
            continue
        # The mount shows what lies under fields[3]; a group that is not below is shown as the mount itself.
        top, shown = Path(root, fields[4].lstrip("/")), PurePosixPath(path)
        below = shown.is_relative_to(fields[3]) and ".." not in shown.parts
        folder = top / shown.relative_to(fields[3]) if below else top
        yield from ((kind, each) for each in (folder, *folder.parents) if each.is_relative_to(top))


def _free(folder: Path, limit: str, used: str, cached: Sequence[str]) -> float:
    try:
        most, taken, parts = ((folder / f"memory.{name}").read_text() for name in (limit, used, "stat"))
    except OSError:
        return math.inf  # a root has no limit
    gives_way = sum(int(line.split()[1]) for line in parts.splitlines() if line.split()[0] in cached)
    return math.inf if most.strip() == "max" else float(int(most) - int(taken) + gives_way)
