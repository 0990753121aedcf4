"""A model of an OnDemand's meetings, in every order in which ranks can come: `settle`, `publish` and `close` as
odc_engine/fsdp/on_demand.py has them, over arenas of one node, of several, and of several with a network between.

A rank is a generator that yields what it does to memory, one thing at a time, and gets what it reads. A state is
memory, and what each rank has got so far; all states are visited, by each order that leads to another.
"""

from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Memory = dict[Hashable, Any]
Op = tuple[Any, ...]
Rank = Generator[Op, Any, None]
MOST = 2_000_000  # states
STAYS, FAILED, LEFT = 0, 1, 2


class Wrong(Exception):
    """A law is broken in some order."""


class Told(Exception):
    """A rank hears that another comes to no meeting any more."""


class Fault(Exception):
    """A rank's own error."""


@dataclass(frozen=True)
class Minibatch:
    """`end`: settle, look (and settle, if nobody has gradients), drop, refuse or close. `fails_at`: so many things into
    what ends it the rank has an error. `clears`: after so many passes zero_grad() drops what they have pushed."""

    passes: int = 1
    end: str = "settle"
    fails_at: int | None = None
    clears: int = 0


@dataclass(frozen=True)
class Case:
    """`scripts`: minibatches of each rank. `node`: ranks of a node. `network`: counterparts' memory is fetched.
    `without`: meetings that are left out, and `twice`: the meeting before ranks agree is two, for settle() alone."""

    scripts: tuple[tuple[Minibatch, ...], ...]
    node: int = 0
    network: bool = False
    without: frozenset[str] = field(default_factory=frozenset)
    twice: bool = False

    @property
    def ranks(self) -> range:
        return range(len(self.scripts))

    def stand_in(self, rank: int, owner: int) -> int:
        return rank // self.node * self.node + owner % self.node if self.node else owner

    def counterparts(self, rank: int) -> list[int]:
        return [r for r in self.ranks if self.node and r != rank and r % self.node == rank % self.node]

    def memory(self) -> Memory:
        holds = [(r, o) for r in self.ranks for o in self.ranks if self.stand_in(r, o) == r]
        found: Memory = {("weights", *at): 0 for at in holds} | {("sum", *at): frozenset() for at in holds}
        for rank in self.ranks:
            found |= {("came", rank): 0, ("word", rank): "", ("end", rank): STAYS}
        return found


def rank_of(case: Case, rank: int) -> Rank:
    own = _Own(case, rank)
    try:
        for number, minibatch in enumerate(case.scripts[rank]):
            trains = yield from own.train(number, minibatch)
            if minibatch.end == "close":
                break
            end = minibatch.end if trains else "drop again"
            yield from _failing_at(minibatch.fails_at, own.end_minibatch(end))
    except (Told, Fault):
        yield ("end", FAILED)
    yield ("end", LEFT)
    yield ("leave",)


def _failing_at(count: int | None, calls: Rank) -> Rank:
    got = None
    for done in range(1 << 30):
        try:
            op = calls.send(got)
        except StopIteration:
            return
        if done == count:
            raise Fault
        got = yield op


class _Own:
    """One rank's calls. `version`: of the weights that it has published last."""

    def __init__(self, case: Case, rank: int) -> None:
        self.case, self.rank, self.version, self.came = case, rank, 0, 0

    def train(self, number: int, minibatch: Minibatch) -> Generator[Op, Any, bool]:
        """Returns whether all ranks are still for the same."""
        self.number = number
        self.cleared, self.pushed = False, minibatch.passes > minibatch.clears
        for m in range(minibatch.passes):
            if (yield ("check",)):
                raise Told
            for owner in self.case.ranks:
                found = yield ("read", ("weights", self.case.stand_in(self.rank, owner), owner))
                if found != self.version:
                    raise Wrong(f"{self.rank} gathers weights {found} of {owner} in minibatch {number}")
            if not (yield from self.drop_cleared()):
                return False
            for owner in self.case.ranks:
                yield ("add", ("sum", self.case.stand_in(self.rank, owner), owner), (number, self.rank, m))
            self.cleared = minibatch.clears == m + 1
        return True

    def drop_cleared(self) -> Generator[Op, Any, bool]:
        if not self.cleared:
            return True
        self.cleared = False
        return bool((yield from self.meet_for("clears")))

    def end_minibatch(self, end: str) -> Rank:
        """As loops call them: settle() and publish(), where a refusal of all is answered by publish()."""
        settles = end in ("settle", "look", "refuse") and (yield from self.drop_cleared())
        if settles and end == "look":
            words = yield from self.meet_for("looks+" if self.pushed else "looks")
            settles = bool(words) and (words != {"looks"} or bool((yield from self.meet_for("settles"))))
        elif settles:
            settles = bool((yield from self.meet_for("refuses" if end == "refuse" else "settles")))
        if settles:
            yield from self.meet_for("publishes")
        else:
            dropped = end == "drop" and bool((yield from self.meet_for("drops")))
            while not dropped:
                dropped = bool((yield from self.meet_for("drops")))

    def meet_for(self, reason: str) -> Generator[Op, Any, set[str]]:
        """OnDemand._meet, line by line. Returns what ranks say, nothing if they are here for different reasons."""
        words = {reason}
        if reason != "publishes":
            yield ("write", ("word", self.rank), reason)
            yield from self.meet("agree")
            if self.case.twice and reason != "drops":
                yield from self.meet("agree again")
            words = set()
            for rank in self.case.ranks:
                words.add((yield ("read", ("word", rank))))
            if not self.agrees(words):
                yield from self.meet("disagree")
                return set()
            if words == {"looks"}:
                yield from self.meet("look")
                return words
        if reason == "clears":
            for owner in (self.rank, *self.case.counterparts(self.rank)):
                yield ("write", ("sum", self.rank, owner), frozenset())
            yield from self.meet("clear")
        elif reason in ("settles", "looks", "looks+"):
            if self.case.node:
                if self.case.network and not self.case.twice:
                    yield from self.meet("offer sums")
                for other in self.case.counterparts(self.rank):
                    found = yield ("read", ("sum", other, self.rank))
                    yield ("join", ("sum", self.rank, self.rank), found)
            yield from self.set_grads()
        elif reason in ("drops", "publishes"):
            yield from self.write_weights()
            if self.case.node:
                yield from self.meet("fetch")
                for other in self.case.counterparts(self.rank):
                    found = yield ("read", ("weights", other, other))
                    yield ("write", ("weights", self.rank, other), found)
                for owner in (self.rank, *self.case.counterparts(self.rank)):
                    yield ("write", ("sum", self.rank, owner), frozenset())
            yield from self.meet("publish")
        return words

    def agrees(self, words: set[str]) -> bool:
        if len({word.rstrip("+") for word in words}) == 1 and words != {"refuses"}:
            return True
        every = {(its.end, its.clears) for its in (script[self.number] for script in self.case.scripts)}
        if len(every) == 1 and "refuses" not in words:
            raise Wrong(f"{self.rank} is refused in minibatch {self.number}, where all do the same: {words}")
        return False

    def meet(self, name: str) -> Rank:
        if name in self.case.without:
            return
        self.came += 1
        yield ("write", ("came", self.rank), self.came)
        if (yield ("await", self.came)):
            raise Told

    def set_grads(self) -> Rank:
        number = self.number
        found = yield ("read", ("sum", self.rank, self.rank))
        every = [(rank, script[number]) for rank, script in enumerate(self.case.scripts)]
        passes = [(rank, m) for rank, its in every for m in range(its.clears, its.passes)]
        if found != frozenset((number, *each) for each in passes):
            raise Wrong(f"{self.rank} has {sorted(found)} in minibatch {number}")

    def write_weights(self) -> Rank:
        self.version += 1
        yield ("write", ("weights", self.rank, self.rank), self.version)
        if not self.case.node:
            yield ("write", ("sum", self.rank, self.rank), frozenset())


def explore(case: Case) -> int:
    """Return the number of states. Raises Wrong for an order that breaks a law, or in which some wait for ever."""
    start = (tuple(sorted(case.memory().items(), key=str)), ((),) * len(case.ranks))
    seen, waiting, ops = {start}, [start], _Ops(case)
    while waiting:
        items, histories = waiting.pop()
        memory, moved, ended = dict(items), False, 0
        for rank in case.ranks:
            op = ops.of(rank, histories[rank])
            if op is None:
                ended += 1
                continue
            for got, changed in _done(op, rank, memory):
                moved = True
                after = tuple(sorted((memory | changed).items(), key=str)) if changed else items
                state = (after, (*histories[:rank], (*histories[rank], got), *histories[rank + 1 :]))
                if state not in seen:
                    seen.add(state)
                    waiting.append(state)
        if not moved and ended < len(case.ranks):
            raise Wrong(f"some wait for ever: {[ops.of(r, histories[r]) for r in case.ranks]}, {memory}")
        assert len(seen) < MOST
    return len(seen)


class _Ops:
    """What a rank does next, by what it has got so far."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._known: dict[tuple[int, tuple[Any, ...]], Op | None] = {}

    def of(self, rank: int, history: tuple[Any, ...]) -> Op | None:
        if (rank, history) not in self._known:
            self._known[rank, history] = self._again(rank, history)
        return self._known[rank, history]

    def _again(self, rank: int, history: tuple[Any, ...]) -> Op | None:
        calls = rank_of(self._case, rank)
        try:
            op = next(calls)
            for got in history:
                op = calls.send(got)
        except StopIteration:
            return None
        return op


def _done(op: Op, rank: int, memory: Mapping[Hashable, Any]) -> Sequence[tuple[Any, Memory]]:
    """What it may come to: what the rank gets, and what changes. Nothing as long as it waits."""
    kind, *rest = op
    ends = {key[1]: end for key, end in memory.items() if key[0] == "end"}  # type: ignore[index]
    if kind == "read":
        return [(memory[rest[0]], {})]
    if kind == "write":
        return [(None, {rest[0]: rest[1]})]
    if kind == "add":
        return [(None, {rest[0]: memory[rest[0]] | {rest[1]}})]
    if kind == "join":
        return [(None, {rest[0]: memory[rest[0]] | rest[1]})]
    if kind == "end":
        return [(None, {("end", rank): ends[rank] or rest[0]})]
    if kind == "check":  # it looks now and then: it may not have seen yet that another has failed
        return [(False, {}), *([(True, {})] if FAILED in ends.values() else [])]
    if kind == "leave":
        return [(None, {})] if all(ends.values()) else []
    missing = [other for other in ends if memory["came", other] < rest[0]]
    if not missing:
        return [(False, {})]
    return [(True, {})] if FAILED in ends.values() or any(ends[other] for other in missing) else []


def wrong_in(case: Case) -> str:
    """What is wrong, "" if nothing is."""
    try:
        explore(case)
    except Wrong as wrong:
        return str(wrong)
    return ""
