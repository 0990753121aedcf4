"""Pushes of one minibatch that a lane was given."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from odc_engine.memory.finite import Checks, Microbatches
from odc_engine.places.lanes import Handle


class GivenPushes:
    """`count`: of each unit. `torn`: one has ended in the middle."""

    def __init__(self, units: int, way_out: str) -> None:
        self.count: Counter[int] = Counter()
        self.microbatches, self.finite = Microbatches(units), Checks(way_out)
        self.torn = False
        self._in_flight: list[Handle] = []

    def note(self, unit: int, handle: Handle, most: int) -> None:
        """Returns when less than `most` are under way."""
        self.count[unit] += 1
        self._in_flight.append(handle)
        self._wait(most)

    def wait_for_all(self) -> None:
        """What has been given is with its owners, or its error is raised."""
        self._wait(1)

    def _wait(self, most: int) -> None:
        while len(self._in_flight) >= most:
            self._in_flight.pop(0).wait()

    @contextmanager
    def adding(self) -> Iterator[None]:
        self.torn = True
        yield
        self.torn = False
