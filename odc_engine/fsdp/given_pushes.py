"""Track the pushes of one minibatch that a lane was given."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from odc_engine.memory.finite import Checks, Microbatches
from odc_engine.places.lanes import Handle


class GivenPushes:
    """`count`: pushes of each unit. `torn`: a push failed half-way."""

    def __init__(self, units: int, way_out: str) -> None:
        self.count: Counter[int] = Counter()
        self.microbatches, self.finite = Microbatches(units), Checks(way_out)
        self.torn = False
        self._in_flight: list[Handle] = []

    def note(self, unit: int, handle: Handle, most: int) -> None:
        """Add a push; block while `most` or more are under way."""
        self.count[unit] += 1
        self._in_flight.append(handle)
        self._wait(most)

    def wait_for_all(self) -> None:
        """Wait until all pushes have arrived at their owners; raise the error of one that failed."""
        self._wait(1)

    def _wait(self, most: int) -> None:
        while len(self._in_flight) >= most:
            self._in_flight.pop(0).wait()

    @contextmanager
    def adding(self) -> Iterator[None]:
        self.torn = True
        yield
        self.torn = False
