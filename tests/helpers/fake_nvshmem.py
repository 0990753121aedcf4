"""Stands in for NVSHMEM between processes on a CPU, as strict as the library: what it promises, and nothing else.

The engine's own `Nvshmem` runs over it, and gives it addresses, bytes, devices and a stream as it gives nvshmem4py.
What is put travels late: at a drawn moment, or when the device quiets or meets, in any order, and its bytes are read
then and not before. Where it arrives, a load finds it after a meeting of all; a get from there finds it at once. What a
get asks for is read at a drawn moment, too, and lies there when the device has quieted; until then nobody may read it.

What would end the process, or would go wrong without a word, raises `Ended`: calls before the start and after the end,
a start over other devices, addresses outside the heap, sizes that differ, an end on another thread, calls that NVSHMEM
does not have where processes share a GPU without MPS.
"""

import itertools
import os
import random
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from odc_engine.backends.nvshmem.heap import heap_size
from odc_engine.backends.nvshmem.library import Nvshmem
from odc_engine.backends.nvshmem.process import PROCESS, ranks_of
from odc_engine.backends.shm import files
from odc_engine.backends.shm.memory import SharedMemory

LANES, TRAINING = 0, 1  # rooms
STREAM = 7
GARBAGE = 0xFF  # a heap's memory is not cleared, nor what a get will write to: not a number in any dtype


class Ended(Exception):
    """The library would have ended the process, or lost bytes without a word."""


class Block:
    """What one allocation is: everybody's bytes, what has come over a network to them, and where it has."""

    def __init__(self, group, nbytes):
        self.nbytes = nbytes
        self.files = files.share(group, 3 * nbytes)
        parts = [files.bytes_of(file).view(3, nbytes) for file in self.files]
        self.arenas, self.landed, self.news = ([each[i] for each in parts] for i in range(3))

    def free(self):
        for each in (self.arenas, self.landed, self.news):
            each.clear()
        files.unmap(self.files)


class Life:
    """NVSHMEM of this process. Its devices and its heap are those of the first start, even after an end (3.4.5)."""

    def __init__(self):
        self.ranks, self.heap, self.starts = None, 0, 0
        self.running = False

    def begin(self, group, machines):
        if self.ranks not in (None, ranks_of(group)):
            raise Ended(f"a start over ranks {ranks_of(group)} gets those of the first, {self.ranks}")
        if self.running:
            raise Ended("a second start")
        if max(machines) > 1 and os.environ.get("NVSHMEM_DISABLE_NVLS") != "1":
            raise Ended("one GPU is bound to two multicast objects")  # devices of a machine share one here
        self.ranks = ranks_of(group)
        self.heap = self.heap or heap_size() or 1 << 30
        self.devices = SharedMemory(group, timeout=30.0)  # of its own: it has other meetings than the backend's
        self.group, self.machine = group, [m for m, count in enumerate(machines) for _ in range(count)]
        if len(self.machine) != self.devices.size:
            raise Ended(f"{self.devices.size} devices on machines of {machines}")
        self.rank, self.starter = self.devices.rank, threading.get_ident()
        self.blocks, self.puts, self.gets = [], [], []
        self.drawn, self.lock = random.Random(self.rank), threading.RLock()  # lanes are threads here
        self.running, self.starts = True, self.starts + 1

    def alike(self, what, mine):
        told = [None] * self.devices.size
        dist.all_gather_object(told, mine, group=self.group)
        if any(its != mine for its in told):
            raise Ended(f"{what} {told}: not the same on all devices")

    def place(self, address, nbytes, what):
        """The block that has bytes of the own heap, and where in it. Nothing else can be reached by a network."""
        if not self.running:
            raise Ended(f"{what} while NVSHMEM does not run")
        for block in self.blocks:
            start = address - block.arenas[self.rank].data_ptr()
            if start >= 0 and start + nbytes <= block.nbytes:
                return block, start
        raise Ended(f"{what}: {nbytes} bytes at {address:#x} are not of this device's heap")


LIFE = Life()


class Core:
    """What the engine calls of nvshmem.core to start it."""

    def __init__(self, group, machines):
        self._group, self._machines = group, machines

    def get_unique_id(self, empty=False):
        return None if empty else random.random()

    def init(self, *, device, uid, rank, nranks, initializer_method):
        assert device is None  # a CPU
        assert initializer_method == "uid"
        LIFE.begin(self._group, self._machines)
        LIFE.alike("an id of", uid)
        if uid is None or (rank, nranks) != (LIFE.rank, LIFE.devices.size):
            raise Ended(f"device {rank} of {nranks} with id {uid}")


def forget():
    """As in a new process. For tests that leave NVSHMEM in the middle."""
    if LIFE.running:
        LIFE.devices.close()
    LIFE.__init__()
    PROCESS.__init__()


class HostLibrary:
    """What the engine calls past nvshmem4py."""

    def __init__(self, grows):
        self._grows = grows

    def nvshmem_malloc(self, nbytes):
        if not LIFE.running or nbytes <= 0:
            raise Ended(f"{nbytes} bytes asked for")
        self._on_its_thread("an allocation")
        LIFE.alike("an allocation of", (nbytes, len(LIFE.blocks)))
        if not self._grows and sum(block.nbytes for block in LIFE.blocks) + nbytes > LIFE.heap:
            raise Ended(f"a heap of {LIFE.heap} bytes has no {nbytes} more")
        block = Block(LIFE.group, nbytes)
        block.arenas[LIFE.rank].fill_(GARBAGE)
        LIFE.blocks.append(block)
        LIFE.devices.meet(TRAINING)
        return block.arenas[LIFE.rank].data_ptr()

    def _on_its_thread(self, what):
        """CUDA's present device is each thread's own, and the start has set it there."""
        if threading.get_ident() != LIFE.starter:
            raise Ended(f"{what} on another thread than the start")

    def nvshmem_free(self, address):
        self._on_its_thread("a free")
        block, start = LIFE.place(address, 0, "a free")
        if start:
            raise Ended("freed is what was not allocated")
        LIFE.alike("a free of", LIFE.blocks.index(block))
        self.nvshmemx_barrier_all_on_stream(STREAM)
        LIFE.blocks.remove(block)
        block.free()

    def nvshmemx_barrier_all_on_stream(self, stream):
        assert stream == STREAM
        if not LIFE.running:
            raise Ended("a meeting while NVSHMEM does not run")
        deliver()
        room = TRAINING if threading.get_ident() == LIFE.starter else LANES
        LIFE.devices.meet(room)
        for block in LIFE.blocks:  # all have quieted: what has come can be read
            news = block.news[LIFE.rank].bool()
            block.arenas[LIFE.rank][news] = block.landed[LIFE.rank][news]
            block.news[LIFE.rank][news] = 0
        LIFE.devices.meet(room)

    def nvshmemx_hostlib_finalize(self):
        self._on_its_thread("the end")
        if not LIFE.running or LIFE.blocks or LIFE.puts or LIFE.gets:
            raise Ended(f"the end with {len(LIFE.blocks)} allocations, {len(LIFE.puts) + len(LIFE.gets)} transfers")
        LIFE.devices.meet(TRAINING)
        LIFE.devices.close()
        LIFE.running = False


class Bindings:
    """What the engine calls of nvshmem.bindings, with what the real ones are given. Other names that NVSHMEM has end a
    process that shares its GPU without MPS."""

    def __getattr__(self, name):
        raise Ended(f"{name}: not supported with limited MPG")

    def my_pe(self):
        return LIFE.rank

    def n_pes(self):
        return LIFE.devices.size

    def ptr(self, address, pe):
        block, start = LIFE.place(address, 1, "ptr")
        return block.arenas[pe].data_ptr() + start if LIFE.machine[pe] == LIFE.machine[LIFE.rank] else 0

    def putmem_nbi_on_stream(self, target, source, nbytes, pe, stream):
        self._check(nbytes, pe, stream)
        into, at = LIFE.place(target, nbytes, "a put's target")
        block, start = LIFE.place(source, nbytes, "a put's source")
        data = block.arenas[LIFE.rank][start : start + nbytes]  # read when it travels
        with LIFE.lock:
            LIFE.puts.append((into, at, data, pe))
        deliver(some=0.2)

    def getmem_nbi_on_stream(self, target, source, nbytes, pe, stream):
        self._check(nbytes, pe, stream)
        block, start = LIFE.place(target, nbytes, "a get's target")
        asked, at = LIFE.place(source, nbytes, "a get's source")
        into = block.arenas[LIFE.rank][start : start + nbytes]
        into.fill_(GARBAGE)
        with LIFE.lock:
            early = found(asked, at, nbytes, pe).clone() if LIFE.drawn.random() < 0.3 else None
            LIFE.gets.append((into, asked, at, pe, early))

    def quiet_on_stream(self, stream):
        assert stream == STREAM
        if not LIFE.running:
            raise Ended("a quiet while NVSHMEM does not run")
        deliver()

    def _check(self, nbytes, pe, stream):
        assert stream == STREAM
        assert nbytes > 0
        if not (LIFE.running and 0 <= pe < LIFE.devices.size):
            raise Ended(f"device {pe} is not one of NVSHMEM's")


def deliver(some=1.0):
    """What is under way, or some of the puts, in any order."""
    with LIFE.lock:
        late = [LIFE.drawn.random() >= some for _ in LIFE.puts]
        moved = [put for put, later in zip(LIFE.puts, late, strict=True) if not later]
        LIFE.puts = [put for put, later in zip(LIFE.puts, late, strict=True) if later]
        LIFE.drawn.shuffle(moved)
        for into, at, data, pe in moved:
            part = slice(at, at + len(data))
            if LIFE.drawn.random() < 0.3:  # a load may find it sooner than promised
                into.news[pe][part] = 0
                into.arenas[pe][part] = data
            else:
                into.landed[pe][part] = data
                into.news[pe][part] = 1
        if some == 1:
            LIFE.drawn.shuffle(LIFE.gets)
            for into, asked, at, pe, early in LIFE.gets:
                into.copy_(found(asked, at, len(into), pe) if early is None else early)
            LIFE.gets = []


def found(block, at, nbytes, pe):
    """What a network finds at a device: what has come over it, before any load there does."""
    part = slice(at, at + nbytes)
    return torch.where(block.news[pe][part].view(torch.bool), block.landed[pe][part], block.arenas[pe][part])


class FakeNvshmem(Nvshmem):
    """`machines`: how many devices each has, in the order of devices. `grows`: its heap is as large as it has to be."""

    device = torch.device("cpu")
    _stream = STREAM

    def __init__(self, machines, *, grows=True):
        self.machines, self.grows = machines, grows
        self.log = []  # (what, bytes, device), in turn

    @property
    def _calls(self):
        return Bindings()

    @property
    def _host(self):
        return HostLibrary(self.grows)

    def _grows(self):
        return self.grows

    def room(self, nbytes):
        assert nbytes > 0
        self.process.check(nbytes, grows=self.grows)

    def _join(self, group):
        core = Core(group, self.machines)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "nvshmem", SimpleNamespace(core=core))
            patch.setitem(sys.modules, "nvshmem.core", core)
            super()._join(group)

    def _bytes(self, address, nbytes):
        every = itertools.chain.from_iterable(block.arenas for block in LIFE.blocks)
        return next(each for each in every if each.data_ptr() == address)[:nbytes]

    def get_nbi(self, into, place, device):
        self.log.append(("get_nbi", into.numel(), device))
        super().get_nbi(into, place, device)

    def put_nbi(self, place, data, device):
        self.log.append(("put_nbi", data.numel(), device))
        super().put_nbi(place, data, device)

    def quiet(self):
        self.log.append(("quiet", 0, None))
        super().quiet()

    def meet(self):
        self.log.append(("meet", 0, None))
        super().meet()

    def synchronize(self):
        pass
