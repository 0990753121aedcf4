"""What every device does in one minibatch, step by step: the only place that knows what a sync mode means.

All devices perform the same list of steps. A device with fewer microbatches than the program has performs the
steps of its missing ones in no time, which only a sync without meetings inside allows. Where gradients leave after the
last one alone, it pushes its sums there as all do. The shape does not depend on lengths: a step names a row of a table
of durations that the cost model fills, so one program serves many minibatches.

The rules are FSDP2's. A root unit holds what is in no layer (embedding, final norm, head): its gather waits for the
compute before it, it stays unsharded until its backward, and its push is waited for before the next microbatch. A
layer's gather may run ahead of its compute by a bounded number of positions, and a compute waits for the push two
positions back, because that push still holds the buffer it needs.

Without sharding nothing is gathered, and a push sums a unit's gradients on all devices. Who does not meet shards.

Under hybrid sharding gathers and pushes stay inside a node. Between nodes each device deals with those that have its
place in the other nodes, once per minibatch: before the optimizer it takes in what they have summed of its gradients,
after it their new parameters. Or, as FSDP2 does it, layer by layer: in the last microbatch the sums of a layer go round
between nodes beside the backward of the layers before it, and every node has all of them for an optimizer of its own.
With hierarchical transfers nobody waits for all new parameters: from the next minibatch's start each device brings in
its counterparts' unit by unit, in a lane of its own, and the first gather of a unit waits for that unit alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

from odcsim.errors import InputError, nearest
from odcsim.support.budget import memoize

P = ParamSpec("P")
R = TypeVar("R")
SHARDED, WHOLE = ("full", "hybrid"), "none"  # in the last one every device has everything, as under DDP
SHARDINGS = (*SHARDED, WHOLE)
EXCHANGES = ("end", "layers")
COMPUTE, COMM, GATHER, PUSH, NODES = "compute", "comm", "gather", "push", "nodes"  # lanes
ROOT = 0  # unit; layers are 1..L
SETTLES = "meeting to settle"  # how the first meeting at a minibatch's end is timed
MOST_STEPS = 2**18  # of all programs that are remembered: with all that is known of a step, half a gigabyte
EVERY = -1  # the microbatch of a step, or of a duration, that belongs to none
KINDS = ("compute", "gather", "push", "overhead", "optimizer", "publish", "meeting")  # of steps


@dataclass(frozen=True, slots=True)
class Sync:
    """What sets the syncs apart: which transfers are meetings, which lanes they use, when gradients leave."""

    meets: bool  # gathers and pushes are collectives: everybody meets, and all run as many microbatches
    gather_lane: str
    push_lane: str
    push_every_microbatch: bool
    publishes: bool  # one-sided readers need the shards laid out for them, and a word when they are new

    @property
    def queues(self) -> bool:
        """Whether devices may share a queue: who takes from one does not know its last microbatch, and pushes each."""
        return not self.meets and self.push_every_microbatch


SYNC_TABLE = {
    # FSDP2 issues all-gathers and reduce-scatters to one communicator, in order.
    "collective": Sync(True, COMM, COMM, True, False),
    "deferred": Sync(True, COMM, COMM, False, False),
    "on-demand": Sync(False, GATHER, PUSH, True, True),
}
SYNCS = tuple(SYNC_TABLE)
# Those who meet inside a minibatch, and those who do not, each by its usual sync: the first of the table.
SIDES = MEETING, ONE_SIDED = tuple(next(n for n, s in SYNC_TABLE.items() if s.meets is m) for m in (True, False))


@dataclass(frozen=True, slots=True)
class Prefetch:
    """How many positions a gather runs ahead of its compute, and how many a push may trail behind it."""

    forward: int
    backward: int
    trail: int


_PREFETCH = {"none": Prefetch(0, 0, 1), "fsdp2": Prefetch(2, 1, 2)}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing a device does: in its lane's order, after the steps named, meeting the other devices or not."""

    kind: str  # one of KINDS
    lane: str
    microbatch: int
    unit: int  # ROOT, a layer's number, or -1
    duration: int  # row of Program.durations
    after: tuple[int, ...]  # steps of other lanes (a lane's own order is implied)
    meets: bool

    def __str__(self) -> str:
        unit = {ROOT: " root", -1: ""}.get(self.unit, f" layer {self.unit}")
        microbatch = f" mb {self.microbatch}" if self.microbatch != EVERY else ""
        after = f" after {', '.join(map(str, self.after))}" if self.after else ""
        return f"{self.lane:<7} {self.kind}{unit}{microbatch}{after}{' meets' if self.meets else ''}"


def by_steps(function: Callable[P, R]) -> Callable[P, R]:
    """Remember what a function finds for a program."""
    return memoize(MOST_STEPS, lambda *given: len(given[1].steps))(function)


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of one minibatch, in an order in which they can be issued."""

    sync: str
    layers: int
    microbatches: int
    prefetch: str
    steps: tuple[Step, ...] = field(hash=False)  # what else it has says enough to look it up by
    durations: tuple[tuple[str, int], ...] = field(hash=False)  # (what is timed, microbatch or EVERY)
    sharding: str = "full"
    exchange: str = "end"
    reshard: bool = True  # layers are gathered again for their backward

    def __str__(self) -> str:
        width = len(str(len(self.steps)))
        # Files have this text, and older ones time both meetings alike: the steps are the same.
        names = [self.durations[step.duration][0] for step in self.steps]
        timed = ["meeting" if name == SETTLES else name for name in names]
        return "\n".join(f"{i:>{width}} {s} [{t}]" for i, (s, t) in enumerate(zip(self.steps, timed, strict=True)))

    @property
    def end(self) -> int:
        """Where the steps that belong to no microbatch begin.

        Those before come microbatch by microbatch, each as many and of like shape, wherever all of them push: so a
        longer program begins with the same steps and the same rows.
        """
        return next(i for i, step in enumerate(self.steps) if step.microbatch == EVERY and step.lane != NODES)

    @property
    def begin(self) -> int:
        """Where the first microbatch begins, behind what is brought in."""
        return next(i for i, step in enumerate(self.steps) if step.lane != NODES)

    @property
    def one_sided(self) -> bool:
        """Whether a device's gathers and pushes need nobody else."""
        return not SYNC_TABLE[self.sync].meets

    def leaves_node(self, step: Step) -> bool:
        """Whether a step moves bytes between nodes, where there are several."""
        inside = self.sharding == "hybrid" and step.microbatch != EVERY and step.lane != NODES
        return step.kind in ("gather", "push") and not inside

    @by_steps
    def previous_in_lane(self) -> tuple[int, ...]:
        """For each step the one before it in its lane, or -1."""
        last: dict[str, int] = {}
        before = []
        for i, step in enumerate(self.steps):
            before.append(last.get(step.lane, -1))
            last[step.lane] = i
        return tuple(before)


class Builder:
    """Steps as they are issued: each comes behind the one before it in its lane."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.rows: dict[tuple[str, int], int] = {}

    def add(
        self,
        kind: str,
        lane: str,
        timed: str,
        *,
        microbatch: int = EVERY,
        unit: int = -1,
        after: Iterable[int] = (),
        meets: bool = False,
    ) -> int:
        """The number of a step that all devices do, each for itself or, where it `meets`, when all have come to it.

        It takes the seconds of what is `timed`, of its microbatch where it is of one. `after`: numbers of steps that
        come before it in other lanes; -1 is none.
        """
        if kind not in KINDS:
            raise InputError(f"a step of kind {kind!r:.40}", fix=nearest(str(kind), list(KINDS)))
        if microbatch < EVERY:
            raise InputError(f"a step of microbatch {microbatch}", fix=f"they are numbered from 0; {EVERY} is none")
        if kind == "compute" and meets:  # what it waits for would count as work
            raise InputError("a step of compute that meets", fix="add a step of kind 'meeting' before it")
        needs = sorted({number for number in after if number != -1})
        if odd := [number for number in needs if not 0 <= number < len(self.steps)]:
            problem = f"step {len(self.steps)} comes after step {odd[-1]}, which is not there yet"
            raise InputError(problem, fix="add a step behind those that it comes after")
        row = self.rows.setdefault((timed, microbatch), len(self.rows))
        self.steps.append(Step(kind, lane, microbatch, unit, row, tuple(needs), meets))
        return len(self.steps) - 1

    def program(self, sync: str = "", layers: int = 0, microbatches: int | None = None, **how: Any) -> Program:
        """What has been added so far. `how`: the other fields of a program by a sync of the table."""
        if not self.steps:
            raise InputError("a program without steps", fix="add one")
        count = 1 + max(step.microbatch for step in self.steps) if microbatches is None else microbatches
        rest = {"steps": tuple(self.steps), "durations": tuple(self.rows), "prefetch": ""}
        return Program(sync, layers, count, **rest | how)


def sync_named(name: str) -> Sync:
    if name not in SYNC_TABLE:
        raise InputError(f"unknown sync '{name}'", fix=nearest(name, list(SYNCS)))
    return SYNC_TABLE[name]


def prefetch_named(name: str) -> Prefetch:
    """`none`, `fsdp2`, or a whole number: that many positions ahead in both directions."""
    if name in _PREFETCH:
        return _PREFETCH[name]
    if name.isdecimal() and len(name) < 4 and int(name) > 0:
        return Prefetch(int(name), int(name), 2)
    raise InputError(f"unknown prefetch '{name}'", fix="use none, fsdp2 or a number of layers from 1")


def check_counts(sync: str, microbatches: tuple[int, ...], queued: int = 0, where: str = "") -> None:
    """Refuse unequal microbatch counts, and a shared queue of any, under a sync that would wait for ever."""
    facts = sync_named(sync)
    if queued and not facts.queues:
        raise InputError(
            f"{queued} microbatches wait in a queue that devices share, and {sync} sync "
            f"{'would hang' if facts.meets else 'pushes after the last one, which nobody knows'}",
            where=where,
            fix="use --sync on-demand, or a balancer without a queue (lb-micro, sorted-slice)",
        )
    if facts.meets and len(set(microbatches)) > 1:
        counts = ", ".join(map(str, microbatches[:16])) + (", ..." if len(microbatches) > 16 else "")
        raise InputError(
            f"devices run different numbers of microbatches ({counts}) and {sync} sync would hang",
            where=where,
            fix="use --sync on-demand, or a balancer with equal counts (lb-micro, sorted-slice)",
        )


@memoize(MOST_STEPS, lambda result, *_: len(result.steps))
def program(
    layers: int,
    microbatches: int,
    sync: str,
    prefetch: str = "fsdp2",
    sharding: str = "full",
    exchange: str = "end",
    reshard: bool = True,
    streams: str = "one",
    hierarchical: bool = False,
) -> Program:
    """Lower the shape of a minibatch to steps: how many microbatches at most, of how many layers, under which sync.

    `hybrid` is for several nodes: on one it is full sharding. Layer by layer only those exchange who meet, and only
    under hybrid sharding without meetings are transfers `hierarchical`. Without `reshard` a layer stays whole from its
    forward to its backward. `streams`: two where reduce-scatters have a communicator of their own.
    """
    for name, value, values in (("sharding", sharding, SHARDINGS), ("exchange", exchange, EXCHANGES)):
        if value not in values:
            raise InputError(f"unknown {name} '{value}'", fix=nearest(value, list(values)))
    if layers < 1 or microbatches < 0:
        raise InputError(f"{layers} layers and {microbatches} microbatches", fix="at least one layer is needed")
    hybrid, facts = sharding == "hybrid", sync_named(sync)
    if sharding == WHOLE and not facts.meets:
        sharding = "full"  # it gathers from shards
    ran = exchange if hybrid and facts.meets else "end"
    at_end = hybrid and ran == "end"  # nodes exchange gradients there, and parameters unless they come unit by unit
    brings = at_end and not facts.meets and hierarchical
    if streams == "two":  # all-gathers do not queue behind reduce-scatters
        facts = replace(facts, gather_lane=GATHER, push_lane=PUSH)
    ahead, gathers = prefetch_named(prefetch), sharding != WHOLE
    writer = _Writer(layers, facts, ahead, layered=ran == "layers", reshard=reshard and gathers, gathers=gathers)
    if brings:
        writer.bring()
    for m in range(microbatches):
        writer.forward(m)
        writer.backward(m, last=m == microbatches - 1)
    writer.end(summed=at_end, fetched=at_end and not brings)
    how = {"prefetch": prefetch, "sharding": sharding, "exchange": ran, "reshard": reshard}
    return writer.steps.program(sync, layers, microbatches, **how)


class _Writer:
    """Adds the steps of a sync and remembers the few that later ones refer to."""

    def __init__(
        self, layers: int, sync: Sync, ahead: Prefetch, *, layered: bool, reshard: bool, gathers: bool
    ) -> None:
        self.layers, self.sync, self.ahead, self.reshard, self.gathers = layers, sync, ahead, reshard, gathers
        self.layered = layered  # nodes exchange a layer's gradients as soon as they are pushed
        self.steps = Builder()
        self.compute = self.push = self.summed = -1  # the latest of the compute lane, push, and exchange between nodes
        self.brought: dict[int, int] = {}  # what brings in a unit for which nothing has waited yet

    def _add(self, kind: str, lane: str, m: int, unit: int, what: str, after: tuple[int, ...], meets: bool) -> int:
        return self.steps.add(kind, lane, what, microbatch=m, unit=unit, after=after, meets=meets)

    def _on_compute(self, kind: str, what: str, m: int, unit: int, *after: int) -> None:
        self.compute = self._add(kind, COMPUTE, m, unit, what, after, kind == "meeting")

    def _gather(self, m: int, unit: int, after: int) -> int:
        if not self.gathers:
            return -1
        what, needs = f"gather {_unit(unit)}", (after, self.brought.get(unit, -1))
        return self._add("gather", self.sync.gather_lane, m, unit, what, needs, self.sync.meets)

    def _push(self, m: int, unit: int, *, last: bool) -> int:
        """Send gradients where they leave now, and sum them between nodes where that is done layer by layer."""
        meets = self.sync.meets
        if last or self.sync.push_every_microbatch:
            lane = self.sync.push_lane
            self.push = self._add("push", lane, m, unit, f"push {_unit(unit)}", (self.compute,), meets)
        if last and self.layered:
            self.summed = self._add("push", NODES, m, unit, f"sum {_unit(unit)}", (self.push,), meets)
        return self.push

    def bring(self) -> None:
        """Unit by unit, what other nodes have: the first compute that needs one waits for it, then it is there."""
        for unit in range(self.layers + 1):
            self.brought[unit] = self._add("gather", NODES, EVERY, unit, f"bring {_unit(unit)}", (), False)

    def forward(self, m: int) -> None:
        """The embedding, layers 1..L. Gathers that run ahead from the start wait for no compute of this pass."""
        self._on_compute("overhead", "overhead", m, -1, self.push)
        layers, ahead = self.layers, self.ahead.forward
        gathers = {ROOT: self._gather(m, ROOT, self.compute)}
        gathers |= {layer: self._gather(m, layer, -1) for layer in range(1, min(ahead, layers) + 1)}
        self._on_compute("compute", "embed", m, ROOT, gathers[ROOT], self.brought.pop(ROOT, -1))
        for layer in range(1, layers + 1):
            if (coming := layer + ahead) <= layers:
                gathers[coming] = self._gather(m, coming, self.compute)
            self._on_compute("compute", "forward", m, layer, gathers[layer], self.brought.pop(layer, -1))

    def backward(self, m: int, *, last: bool) -> None:
        """The head (its forward included, since the root stays), layers L..1 and the embedding, each position's push
        trailing behind it."""
        layers, ahead, trail = self.layers, self.ahead.backward, self.ahead.trail
        gathers: dict[int, int] = {}
        pushes = [-1] * trail  # for each position the one whose buffer it needs
        for layer in range(layers, max(layers - ahead, 0), -1) if self.reshard else ():
            gathers[layer] = self._gather(m, layer, self.compute)
        self._on_compute("compute", "head", m, ROOT)
        for layer in range(layers, 0, -1):
            if self.reshard and (coming := layer - ahead) > 0:
                gathers[coming] = self._gather(m, coming, self.compute)
            self._on_compute("compute", "backward", m, layer, gathers.get(layer, -1), pushes[layers - layer])
            pushes.append(self._push(m, layer, last=last))
        self._on_compute("compute", "embed backward", m, ROOT, pushes[layers])
        self._push(m, ROOT, last=last)

    def end(self, *, summed: bool, fetched: bool) -> None:
        """Gradients settle everywhere, the optimizer steps, and one-sided readers learn that new weights are visible.

        Where nodes fetch them, they learn it twice: when other nodes may fetch a shard, and when a node has all.
        """
        lanes, meets = {"push": self.sync.push_lane, "gather": self.sync.gather_lane}, self.sync.meets

        def exchange(kind: str) -> int:
            return self._add(kind, lanes[kind], EVERY, -1, f"{kind} between nodes", (self.compute,), meets)

        self._on_compute("meeting", SETTLES, EVERY, -1, self.push)
        exchanged = exchange("push") if summed else self.summed
        self._on_compute("optimizer", "optimizer", EVERY, -1, exchanged)
        if self.sync.publishes:
            self._on_compute("publish", "publish", EVERY, -1)
            self._on_compute("meeting", "meeting", EVERY, -1)
        if fetched:
            self._on_compute("meeting", "meeting", EVERY, -1, exchange("gather"))


def _unit(number: int) -> str:
    return "root" if number == ROOT else "layer"
