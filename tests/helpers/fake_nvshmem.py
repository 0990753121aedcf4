"""Stands in for NVSHMEM between processes on a CPU: what the library promises, and nothing that it does not.

What is put may arrive at once, or only when the device quiets or meets, in any order. A get reads what is there by
then, one that is not waited for when the device quiets. Only bytes of the own arena can be fetched into or sent from.
Devices of another machine have no address here.
"""

import random
import threading

import torch

from odc_engine.backends.shm import files
from odc_engine.backends.shm.memory import SharedMemory

LANES, TRAINING = 0, 1  # rooms


class FakeNvshmem:
    """`machines`: how many devices each has, in the order of devices."""

    device = torch.device("cpu")

    def __init__(self, machines):
        self.log = []
        self._machine = [m for m, count in enumerate(machines) for _ in range(count)]
        self._files, self._arenas, self._way, self._coming = [], [], [], []

    def room(self, nbytes):
        assert nbytes > 0

    def start(self, group, nbytes):
        self._group, self._heap, self._starter = group, nbytes, threading.get_ident()
        self._devices = SharedMemory(group, timeout=30.0)  # of its own: it has other meetings than the backend's
        assert len(self._machine) == self._devices.size
        self._rank = self._devices.rank
        self._drawn = random.Random(self._rank)
        self._lock = threading.Lock()  # lanes are threads here

    def allocate(self, nbytes):
        assert 0 < nbytes <= self._heap
        self._files = files.share(self._group, nbytes)
        self._arenas = [files.bytes_of(file) for file in self._files]
        mine = self._arenas[self._rank]
        mine.fill_(0xFF)  # a heap's memory is not cleared: not a number in any dtype
        self._devices.meet(TRAINING)
        return mine

    def mapped(self, mine, device):
        assert mine.data_ptr() == self._arenas[self._rank].data_ptr()
        return self._arenas[device] if self._machine[device] == self._machine[self._rank] else None

    def get(self, into, place, device):
        self.log.append(("get", device))
        start, _ = self._within(place), self._within(into)
        assert into.numel() == place.numel()
        with self._lock:
            into.copy_(self._arenas[device][start : start + place.numel()])

    def get_nbi(self, into, place, device):
        self.log.append(("get_nbi", device))
        start, _ = self._within(place), self._within(into)
        assert into.numel() == place.numel()
        into.fill_(0xFF)  # nobody may read it yet
        with self._lock:
            self._coming.append((device, start, into))

    def put(self, place, data, device):
        self.log.append(("put", device))
        start, _ = self._within(place), self._within(data)
        assert data.numel() == place.numel()
        with self._lock:
            self._way.append((device, start, data.clone()))
        if self._drawn.random() < 0.3:
            self._deliver()

    def quiet(self):
        self.log.append(("quiet", None))
        self._deliver()
        with self._lock:
            self._drawn.shuffle(self._coming)
            for device, start, into in self._coming:
                into.copy_(self._arenas[device][start : start + into.numel()])
            self._coming.clear()

    def meet(self):
        self.log.append(("meet", None))
        self._deliver()
        self._devices.meet(TRAINING if threading.get_ident() == self._starter else LANES)

    def synchronize(self):
        pass

    def stop(self, mine):
        if mine is not None:
            assert not self._way
            self._devices.meet(TRAINING)
            self._arenas.clear()
            files.unmap(self._files)
            self._devices.close()

    def _deliver(self):
        with self._lock:
            self._drawn.shuffle(self._way)
            for device, start, data in self._way:
                self._arenas[device][start : start + data.numel()].copy_(data)
            self._way.clear()

    def _within(self, part):
        """Where a part of the own arena begins. Nothing else can be reached by a network."""
        mine = self._arenas[self._rank]
        start = part.data_ptr() - mine.data_ptr()
        assert part.dtype == torch.uint8
        assert part.is_contiguous()
        assert 0 <= start <= mine.numel() - part.numel()
        return start
