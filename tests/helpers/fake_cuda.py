"""Streams of a GPU that is not here: work is done when it is given, and what a real GPU would have waited for is kept.

A real stream does its work later, as soon as what it was told to wait for is done. So of two pieces of work one is
known to come first only where a chain of streams' orders, marks and waits says so. Every stream counts its work, and
knows how far into each other stream such chains reach (a vector clock).
"""

import threading
import time
from contextlib import contextmanager
from itertools import count

import torch

from odc_engine.places.streams import StreamPlace

Known = dict[int, int]  # of each stream, up to which piece of its work


def merged(*every: Known) -> Known:
    return {stream: max(each.get(stream, 0) for each in every) for stream in set().union(*every)}


class Event:
    def __init__(self, enable_timing=False):
        del enable_timing

    def record(self, stream=None):
        self.known, self.at = (stream or current()).known, time.perf_counter()

    def query(self):
        return True

    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)


class Stream:
    numbers = count()

    def __init__(self, priority=0):
        del priority
        self.number, self.done = next(self.numbers), 0
        self.known: Known = {}

    def work(self, *, after: Known | None = None) -> tuple[int, int, Known]:
        """A piece of work: its stream, its number there, and everything that is done before it."""
        before = merged(self.known, after or {}, host.known)
        self.done += 1
        self.known = merged(before, {self.number: self.done})
        return self.number, self.done, before

    def wait_event(self, event):
        self.known = merged(self.known, event.known)

    def wait_stream(self, other):
        self.known = merged(self.known, other.known)

    def record_event(self):
        event = Event()
        event.known, event.at = self.known, time.perf_counter()
        return event

    def query(self):
        return True

    def synchronize(self):
        host.known = merged(host.known, self.known)


class Host(threading.local):
    """What a thread knows to be done, since it has waited for it; and where it gives work to."""

    def __init__(self):
        self.known: Known = {}
        self.stream = Stream()


host = Host()


def current() -> Stream:
    return host.stream


class FakeCuda:
    """What odc_engine.places.streams uses of torch.cuda, and FSDP2."""

    Event, Stream = Event, Stream
    current_stream = staticmethod(current)

    @staticmethod
    @contextmanager
    def stream(entered):
        before, host.stream = host.stream, entered
        try:
            yield
        finally:
            host.stream = before


def place() -> StreamPlace:
    return StreamPlace(torch.device("cpu"), [Stream() for _ in range(3)])
