"""A rank's gathers and pushes of units, one lane for each kind, recorded."""

from collections.abc import Callable
from contextlib import ExitStack

from torch import Tensor

from odc_engine.backends.base import COMM, PeerMemory
from odc_engine.fsdp.given_pushes import GivenPushes
from odc_engine.fsdp.phase import closed
from odc_engine.fsdp.units import Unit
from odc_engine.memory.arena import Arena
from odc_engine.places.lanes import DONE, Handle
from odc_engine.record import Recorder
from odcsim.errors import InputError, nearest
from odcsim.program import NODES
from odcsim.recipe import FAR


class Transfers:
    """`meets`: every transfer synchronizes all ranks, in one lane. `trail`: compute waits for the push so many
    positions back. `check_finite`: check gradients before they are added to a sum. `hierarchical`: fetch units
    from other nodes one by one, in a lane of their own."""

    def __init__(
        self, arena: Arena, recorder: Recorder, *, meets: bool, trail: int, check_finite: bool, hierarchical: bool
    ) -> None:
        self._open_arena: Arena | None = arena  # its views would keep the memory
        self._recorder, self._meets, self._trail = recorder, meets, trail
        self._memory: PeerMemory = arena.memory
        self._check_finite = check_finite
        with ExitStack() as opened:
            lane = self._memory.place.lane
            self._gathers = lane("gather")
            opened.callback(self._gathers.close)
            self._pushes = self._gathers if meets else lane("push")
            opened.callback(self._pushes.close)
            self._nodes = lane(NODES) if hierarchical else None
            if self._nodes is not None:
                opened.callback(self._nodes.close)
            self._brought: dict[int, Handle] | None = {}  # by units; None: published, and not begun
            self._opened = opened.pop_all()

    @property
    def arena(self) -> Arena:
        if self._open_arena is None:
            raise closed()
        return self._open_arena

    def gather(self, unit: Unit, out: Tensor) -> Handle:
        """Start to gather a unit."""
        arena, number = self.arena, self._recorder.given("gather", unit.index)
        own = self.bring().get(unit.index, DONE)

        def pull() -> None:
            own.check()
            self._move(number, lambda: arena.gather(unit.index, out))

        return self._gathers.give(pull)

    def begin(self) -> None:
        """Begin after all ranks have published."""
        if self._nodes is not None:
            self.arena.begin()
            self._brought = None

    def bring(self) -> dict[int, Handle]:
        """Start to fetch what other nodes hold, unit by unit in the order of use, once per publication."""
        if self._brought is None and self._nodes is not None:
            self._brought = {unit: self._nodes.give(self._bringing(unit)) for unit in range(len(self.arena.units))}
        return self._brought or {}

    def _bringing(self, unit: int) -> Callable[[], None]:
        arena, number = self.arena, self._recorder.given(NODES, unit)
        return lambda: self._move(number, lambda: arena.bring(unit))

    def push(self, unit: Unit, gradients: Tensor, given: GivenPushes) -> None:
        """Start to push a unit's gradients to their owners, once few enough pushes are under way."""
        arena, microbatches = self.arena, given.microbatches.of_push(unit.index)
        number = self._recorder.given("push", unit.index)

        def add() -> None:
            if self._check_finite:
                given.finite.check(gradients, unit.name, self._memory.rank, microbatches)
            with given.adding():
                arena.push(unit.index, gradients)

        given.note(unit.index, self._pushes.give(lambda: self._move(number, add)), self._trail)

    def finish_pushes(self, given: GivenPushes) -> None:
        """Wait until all of a minibatch's pushes are done, and until other ranks have what this one fetches for
        them."""
        if self.bring() and self._nodes is not None:
            self._nodes.drain()
        self._pushes.drain()
        given.finite.settle()
        self.arena.complete()

    def finish_gathers(self) -> None:
        self._gathers.drain()

    def wait_for_all(self) -> None:
        self._gathers.drain()
        self._pushes.drain()

    def between_nodes(self, kind: str, move: Callable[[], None]) -> None:
        """Run an exchange between nodes (hybrid sharding). It synchronizes if transfers do."""
        if self.arena.nodes > 1:
            self._move(self._recorder.given(kind, -1), move)

    def _move(self, number: int, move: Callable[[], None]) -> None:
        """Run in a lane: first synchronize, if transfers do."""
        asked = self._recorder.tick()
        if self._meets:
            self._memory.meet(COMM)
        move()
        self._recorder.done(number, asked, self._recorder.tick())

    def close(self) -> None:
        self._opened.close()
        self._open_arena = None


def is_hierarchical(far: str, meets: bool, devices_per_node: int | None) -> bool:
    """Whether a node fetches weights of other nodes once, unit by unit."""
    if far not in FAR:
        raise InputError(f"unknown far mode '{far}'", fix=nearest(far, list(FAR)))
    if far == "each":
        return False
    if meets or devices_per_node is None:
        problem = "transfers that meet" if meets else "no nodes"
        raise InputError(f"hierarchical transfers with {problem}", fix="give devices_per_node, and leave `meets` out")
    return True
