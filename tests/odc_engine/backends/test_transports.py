"""What every transport owes, whatever carries its bytes: all meet, each number is taken once, locks exclude, whoever
is gone is named by all others, and nothing stays behind. Arenas over them: memory/test_interleavings."""

import contextlib
import gc
import itertools
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import arenas
import fake_nvshmem
import pytest
import torch
import torch.distributed as dist
from transports import lacking, lost, refused, spread

from odc_engine.backends.base import COMM, MAIN
from odc_engine.backends.network import Network
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.backends.shm.peers import TAKEN
from odc_engine.backends.tcp.memory import TcpMemory
from odc_engine.errors import PeerLost
from odc_engine.runs import launch

ROUNDS = 300
SHORT = 0.5  # seconds of timeout
SIZE = 1 << 12  # bytes of an arena


@dataclass(frozen=True)
class Transport:
    """`over`: the machine of each device. `lacks`: what its system has not. `threads`: devices are no processes."""

    host: type
    memory: type | None = None
    over: tuple[int, ...] = (0, 0, 0)
    lacks: tuple[str, ...] = ()
    arena: bool = True
    locks: bool = True
    threads: bool = False

    def made(self, group=None, timeout=30.0):
        host = self.host(group, timeout)
        if self.memory is NvshmemMemory:
            return NvshmemMemory(host, fake_nvshmem.FakeNvshmem(tuple(Counter(self.over).values())))
        return self.memory(host) if self.memory else host


TRANSPORTS = {
    "shm": Transport(SharedMemory),
    "shm, an old linux": Transport(SharedMemory, lacks=("kernel 5.3",)),
    "shm elsewhere": Transport(SharedMemory, lacks=("memfd", "pidfd", "futex")),
    "network": Transport(Network, over=(0, 1, 2), arena=False, locks=False),
    "tcp": Transport(Network, TcpMemory, (0, 0, 1)),
    "tcp, all apart": Transport(Network, TcpMemory, (0, 1, 2)),
    "nvshmem": Transport(SharedMemory, NvshmemMemory, (0, 0, 1), locks=False),
    "threads": Transport(SharedMemory, threads=True),
}


def those(**facts):
    """The transports of which these hold, as a test's argument `name`."""
    found = [name for name, one in TRANSPORTS.items() if all(getattr(one, f) is fact for f, fact in facts.items())]
    return pytest.mark.parametrize("name", found)


def on_all(pools, name, work, *args, timeout=30.0):
    """What `work(memory, *args)` returns on each of three devices."""
    if not TRANSPORTS[name].threads:
        return pools(3).run(opened, name, work, timeout, *args)

    def allocated(memory):
        memory.allocate(SIZE)
        return work(memory, *args)

    return arenas.on_every_device(3, allocated, timeout)


@contextlib.contextmanager
def made(name, rank, timeout=30.0):
    of = TRANSPORTS[name]
    with lacking(*of.lacks), spread(rank, of.over):
        memory = of.made(timeout=timeout)
        if of.arena:
            memory.allocate(SIZE)
        yield memory


def opened(rank, name, work, timeout, *args):
    with made(name, rank, timeout) as memory:
        try:
            return work(memory, *args)
        finally:
            dist.barrier()  # nobody leaves before the others have seen what they shall see
            memory.close()
            fake_nvshmem.forget()


def met(memory, room):
    found = []
    for late in range(3):
        if memory.rank == late:
            time.sleep(0.1)
        came = time.monotonic()
        memory.meet(room)
        found.append((came, time.monotonic()))
    return found


@pytest.mark.parametrize("room", [MAIN, COMM])
@those()
def test_nobody_leaves_a_meeting_before_the_last_has_come(pools, name, room):
    for devices in zip(*on_all(pools, name, met, room), strict=True):
        came, left = zip(*devices, strict=True)
        assert min(left) >= max(came)


def apart(memory):
    """A lane's meetings go on while a training loop waits in its own."""
    waits = threading.Thread(target=memory.meet, args=(MAIN,))
    if memory.rank == 0:
        waits.start()
    for _ in range(5):
        memory.meet(COMM)
    alone = waits.is_alive()
    memory.meet(COMM)
    if memory.rank == 0:
        waits.join(10)
    else:
        memory.meet(MAIN)
    return alone, waits.is_alive()


@those()
def test_rooms_are_independent(pools, name):
    assert on_all(pools, name, apart) == [(True, False), (False, False), (False, False)]


def taken(memory, times):
    if hasattr(memory, "peers"):
        memory.peers.take = lambda: slowly(memory.peers, memory.peers.__class__.take)
    found = []
    for refills in range(3):
        memory.meet(MAIN)
        found.append([memory.take() for _ in range(times)])
        memory.meet(MAIN)
        if memory.rank == refills:
            memory.refill()
    memory.meet(MAIN)
    return found


def slowly(peers, take):
    """Time for others to come between reading the count and writing it, unless a lock holds them off."""
    number = take(peers)
    time.sleep(1e-4)
    peers._words[0][TAKEN] = number + 1
    return number


@those()
def test_every_number_goes_to_one_device_and_a_refill_begins_anew(pools, name):
    for lists in zip(*on_all(pools, name, taken, 40), strict=True):
        assert sorted(itertools.chain(*lists)) == list(range(120))
        assert all(numbers == sorted(numbers) for numbers in lists)


def counted(memory):
    """Everybody adds one to a number of each near device, in steps between which others could come."""
    numbers = [memory.view(device)[8:16].view(torch.int64) for device in memory.near]
    for turn in range(ROUNDS):
        at = turn % len(numbers)
        with memory.lock(memory.near[at], 8, 16):
            seen = int(numbers[at])
            if turn % 10 == memory.rank:
                time.sleep(1e-4)
            numbers[at].fill_(seen + 1)
    memory.meet(MAIN)
    return {int(number) for number in numbers}


@those(locks=True)
def test_locks_exclude(pools, name):
    assert on_all(pools, name, counted) == [{ROUNDS}] * 3


def tried(memory):
    first, last = memory.near[0], memory.near[-1]
    mine = memory.rank == first and memory.try_lock(first, 0, 8)
    memory.meet(MAIN)
    found = [memory.rank == last and memory.try_lock(*where) for where in ((first, 0, 8), (first, 64, 72))]
    memory.meet(MAIN)
    if mine:
        memory.unlock(first, 0, 8)
    memory.meet(MAIN)
    return [mine, *found, memory.rank == last and memory.try_lock(first, 0, 8)]


@those(locks=True)
def test_a_lock_holds_its_own_bytes_until_it_is_given_back(pools, name):
    over = TRANSPORTS[name].over
    for rank, (mine, *found) in enumerate(on_all(pools, name, tried)):
        near = [device for device in range(3) if over[device] == over[rank]]
        assert mine is (rank == near[0])
        if rank == near[-1]:  # a holder's own tries succeed: its lane excludes
            assert found == [mine, True, True]


def moved(memory):
    """Near arenas are seen, far ones read and written."""
    mine, near = memory.view(memory.rank), list(memory.near)
    far = [device for device in range(3) if device not in near]
    mine[:100] = memory.rank
    memory.meet(MAIN)
    if far:
        memory.fetch_all([(d, 0, mine[200 + 100 * d : 300 + 100 * d]) for d in far])
        mine[600:610] = 10 + memory.rank
        for d in far:
            memory.send(d, 1000 + 10 * memory.rank, mine[600:610])
        memory.arrive()
    memory.meet(MAIN)
    return (
        near,
        [memory.view(d)[:100].unique().tolist() for d in near],
        [mine[200 + 100 * d : 300 + 100 * d].unique().tolist() for d in far],
        [mine[1000 + 10 * d : 1010 + 10 * d].unique().tolist() for d in far],
    )


@those(arena=True)
def test_arenas_are_seen_near_and_reached_far(pools, name):
    over = TRANSPORTS[name].over
    for rank, (near, seen, fetched, came) in enumerate(on_all(pools, name, moved)):
        far = [d for d in range(3) if over[d] != over[rank]]
        assert near == [d for d in range(3) if d not in far]
        assert seen == [[d] for d in near]
        assert (fetched, came) == ([[d] for d in far], [[10 + d] for d in far])


def gone(memory, how):
    """Whom others name where device 1 does not meet with them, and after how many seconds."""
    with memory.lock(1, 0, 8) if how == "held" and memory.rank == 1 else contextlib.nullcontext():
        if how == "held":
            memory.meet(MAIN)
        if memory.rank == 1:
            ends = {"left": memory.close, "failed": lambda: memory.fail(RuntimeError())}
            return ends.get(how, lambda: time.sleep(3 * SHORT))()
    began = time.monotonic()
    found = lost(lambda: memory.lock(1, 0, 8).__enter__() if how == "held" else memory.meet(MAIN))
    return found, time.monotonic() - began


# A thread cannot leave, and over NVSHMEM who leaves waits for the others.
GONE = [(name, "failed") for name in TRANSPORTS]
GONE += [(name, "late") for name in TRANSPORTS if name != "nvshmem"]
GONE += [(name, "left") for name in TRANSPORTS if name not in ("nvshmem", "threads")]


@pytest.mark.parametrize(("name", "how"), GONE)
def test_who_does_not_come_is_named_by_all_others(pools, name, how):
    first, _, last = on_all(pools, name, gone, how, timeout=SHORT if how == "late" else 30.0)
    for named, seconds in (first, last):
        assert named == [1]
        assert (seconds >= SHORT) if how == "late" else (seconds < 15)


@pytest.mark.parametrize("name", ["shm", "shm elsewhere", "tcp", "threads"])
def test_who_holds_a_lock_is_among_those_named(pools, name):
    assert 1 in on_all(pools, name, gone, "held", timeout=SHORT)[0][0]


def dies(host, folder, name):
    host.meet(MAIN)
    with made(name, host.rank) as memory:
        memory.meet(MAIN)
        if host.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            memory.meet(MAIN)
        except PeerLost as error:
            (folder / str(host.rank)).write_text(str(error.devices))
            raise


@those(threads=False)
def test_a_killed_peer_is_named_by_all_others(tmp_path, name):
    assert launch.run(dies, 3, 60.0, tmp_path, name) == 1
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0": "[1]", "2": "[1]"}


def of_a_part(rank, name, how):
    """Ranks 1 and 2 alone."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    memory = TRANSPORTS[name].made(group, SHORT)
    try:
        if rank == 2:
            return time.sleep(3 * SHORT) if how == "late" else memory.fail(PeerLost([int(how)], "died"))
        return lost(lambda: memory.meet(MAIN))
    finally:
        dist.barrier(group)
        memory.close()


@pytest.mark.parametrize(("how", "named"), [("late", 2), ("2", 2), ("1", 2), ("0", 2)])
@pytest.mark.parametrize("name", ["shm", "network"])
def test_a_part_of_all_names_ranks_among_all(pools, name, how, named):
    """Whoever ends for a device of the other part says so itself; for this one, that it gave up waiting."""
    assert pools(3).run(of_a_part, name, how)[1] == [named]


def left(memory, how):
    if memory.rank == 1 and how == "one fails":
        return memory.fail(RuntimeError())
    if memory.rank == 1 and how == "one stays":
        return time.sleep(3 * SHORT)
    began = time.monotonic()
    found = []
    named = lost(lambda: found.append(memory.leave()))
    return found, named, time.monotonic() - began >= SHORT


@pytest.mark.parametrize("name", ["shm", "shm elsewhere", "network", "tcp"])
@pytest.mark.parametrize(
    ("how", "told"),
    [("all", ([True], [], False)), ("one fails", ([False], [], False)), ("one stays", ([], [1], True))],
)
def test_leaving_waits_for_all_and_says_whether_all_have_left(pools, name, how, told):
    first, second, third = on_all(pools, name, left, how, timeout=SHORT if how == "one stays" else 30.0)
    assert first == third == told
    assert second in (None, told)


def explained(memory, how):
    if memory.rank == 1:
        if how == "fails":
            memory.fail(RuntimeError())
        return time.sleep(1.5)
    found = memory.explain()
    return found and found.devices


@pytest.mark.parametrize(("how", "named"), [("computes", None), ("fails", [1])])
@pytest.mark.parametrize("name", ["shm", "network"])
def test_a_broken_connection_is_explained_by_who_failed_and_not_by_who_computes(pools, name, how, named):
    first, _, last = on_all(pools, name, explained, how)
    assert first == last == named


def unlike(rank, name):
    of = TRANSPORTS[name]
    with lacking(*of.lacks), spread(rank, of.over):
        memory = of.made()
        try:
            return refused(lambda: memory.allocate(SIZE * (1 + rank)))
        finally:
            dist.barrier()
            memory.close()


@those(arena=True, threads=False)
def test_arenas_of_different_sizes_are_refused_by_all(pools, name):
    assert pools(3).run(unlike, name) == ["InputError"] * 3


def left_over(rank, name):
    """Files and threads that five memories leave which were made and given back, once one has been."""
    counts, names = [], []
    for times in (1, 5):
        for _ in range(times):
            opened(rank, name, lambda memory: memory.meet(MAIN), 30.0)
        engine_s = [each for each in threading.enumerate() if each.name.startswith("odc-")]
        for each in engine_s:  # they end a moment after what they were for
            each.join(5.0)
        names += [each.name for each in engine_s if each.is_alive()]
        gc.collect()
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    return max(0, counts[1] - counts[0]), names


def met_once(_rank):
    dist.barrier()


@pytest.mark.by_default(2)
@pytest.mark.parametrize("name", ["shm", "shm elsewhere", "tcp", "nvshmem"])
def test_nothing_stays(pools, name):
    def files():
        found = [path for folder in (tempfile.gettempdir(), "/dev/shm") for path in Path(folder).glob("odc-*")]
        return {path for path in found if path.is_file()}

    pools(3).run(met_once)  # its own folder is there
    before = files()
    assert pools(3).run(left_over, name) == [(0, [])] * 3
    assert not files() - before
