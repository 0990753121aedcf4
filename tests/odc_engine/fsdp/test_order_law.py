"""What OnDemand does at the end of a minibatch, in which order, is what its model of meetings does, in every arena: so
what holds of the model in every order of ranks (tests/odc_engine/memory) holds of the engine."""

from contextlib import suppress
from itertools import pairwise, permutations
from types import SimpleNamespace

import pytest
import torch
from meetings_model import Case, Minibatch, _done, rank_of
from torch import nn

from odc_engine import OnDemand
from odc_engine.fsdp import agreement, on_demand
from odc_engine.fsdp.agreement import Reason
from odc_engine.fsdp.minibatch import Loop, Phase
from odc_engine.record import Silence
from odcsim.errors import InputError

ARENAS = {"one node": {}, "nodes": {"node": 1}, "nodes over a network": {"node": 1, "network": True}}
ENDS = ("settle", "drop", "look", "look at nothing", "refuse", "clear")
WORDS = {"settle": Reason.SETTLES, "drop": Reason.DROPS, "look": Reason.LOOKS, "clear": Reason.CLEARS}


def modelled(end, other, arena):
    """What rank 0 of two does, by name."""
    scripts = tuple((script(each),) for each in (end, other))
    case = Case(scripts, **ARENAS[arena])
    memory, ranks, told = case.memory(), [rank_of(case, rank) for rank in case.ranks], []
    due = [next(rank) for rank in ranks]
    while any(op is not None and op[0] not in ("leave", "end") for op in due):
        for number, op in enumerate(due):
            if op is None or op[0] in ("leave", "end") or not (found := _done(op, number, memory)):
                continue
            got, changed = found[0]
            memory |= changed
            if number == 0:
                told.append(op)
            try:
                due[number] = ranks[number].send(got)
            except StopIteration:
                due[number] = None
    return named(told)


def script(end):
    if end == "look at nothing":
        return Minibatch(0, "look")
    return Minibatch(2, clears=1) if end == "clear" else Minibatch(1, end)


def named(ops):
    """The model's steps by the engine's names; of a number alike one after the other, one."""
    found = []
    for kind, *rest in ops:
        if kind == "await":
            found.append("meet")
        elif (kind, rest[0][0] if rest and isinstance(rest[0], tuple) else "") in NAMES:
            what, *at = rest[0]
            found.append(NAMES[kind, what] if what == "word" or at[0] == at[1] == 0 else OTHERS.get((kind, what), ""))
    found = [name for name in found if name]
    return [name for before, name in pairwise(["", *found]) if name != before or name == "meet"]


NAMES = {
    ("write", "word"): "say",
    ("read", "word"): "hear",
    ("write", "weights"): "pack",
    ("read", "weights"): "",
    ("write", "sum"): "clear",
    ("read", "sum"): "gradients",
}
OTHERS = {("read", "sum"): "sum nodes", ("write", "weights"): "fetch", ("write", "sum"): "clear"}


class Arena:
    """Of two ranks, which says what it is asked to do. `others`: words of the other rank, one after the other."""

    def __init__(self, kind, others):
        self.told, self.others, self.over_network = [], others, bool(kind.get("network"))
        self.nodes, self.memory = (2 if kind.get("node") else 1), self
        self.rank, self.timeout, self.noted = 0, 1.0, torch.zeros(agreement.SIZE, dtype=torch.uint8)

    def meet(self, *_):
        self.told.append("meet")

    def notes(self, _rank, count):
        self.told.append("say")
        self.noted = torch.zeros(count, dtype=torch.uint8)
        return self.noted

    def every_note(self, count):
        self.told.append("hear")
        other = next(self.others)
        return torch.stack([self.noted, torch.cat([other, torch.zeros(count - len(other), dtype=torch.uint8)])])

    def offer_sums(self):
        return self.over_network

    def sum_nodes(self):
        self.told.append("sum nodes")

    def gradients(self, _):
        self.told.append("gradients")

    def clear(self, _):
        self.told.append("clear")

    def fetch(self):
        self.told += ["fetch", "clear"]

    def fail(self, _):
        self.told.append("fail")

    weights = refill = complete = lambda *_: None


def engine(end, other, arena, monkeypatch):
    made, there, loop = OnDemand.__new__(OnDemand), Arena(ARENAS[arena], said_by(other)), Loop(nn.Module(), [], nothing)
    inside = SimpleNamespace(finish_gather=nothing, shards=list)
    unit = SimpleNamespace(index=0, trainable=[], pieces=[], inside=inside, fsdp=SimpleNamespace(reshard=nothing))
    monkeypatch.setattr(on_demand, "set_grads", nothing)
    monkeypatch.setattr(on_demand, "pack", lambda *_: there.told.append("pack"))
    monkeypatch.setattr(on_demand, "increment_version", nothing)
    lane = SimpleNamespace(drain=nothing)
    alone = SimpleNamespace(every=lambda rows: rows, sum=lambda total: total, fail=nothing)
    alone.hearing = lambda move: move
    vars(made).update(rank=0, size=2, meets=False, recorder=Silence(), memory=there, units=[unit], replicas=alone)
    vars(made).update(
        _arena=there, _loop=loop, scales=[1.0], _gathers=lane, _pushes=lane, _nodes=None, _fetches={}, _silent=True
    )
    loop.enter(Phase.OPEN)
    loop.minibatch.pushes = 0 if end == "look at nothing" else 1
    return made, there


def nothing(*_):
    return None


def said_by(end):
    word = agreement.word
    if end == "refuse":
        yield word(Reason.SETTLES, InputError("no", fix="none"))
    elif end.startswith("look"):
        yield word(Reason.LOOKS, pushed=end == "look")
        if end != "look":
            yield word(Reason.SETTLES)
    elif end == "clear":
        yield word(Reason.CLEARS)
        yield word(Reason.SETTLES)
    else:
        yield word(WORDS[end])
    while True:  # after all were told: they drop it
        yield word(Reason.DROPS)


def done(end, made):
    minibatch = made._loop.minibatch
    minibatch.cleared = end == "clear"
    if end == "refuse":
        minibatch.given_up = InputError("no", fix="none")
    with suppress(InputError):
        if end.startswith("look"):
            made.meet_to_settle(Reason.LOOKS)
        if end != "drop" and not made.settled:
            made.settle()
    with suppress(InputError):  # once more, where all were told
        made.publish()
        return
    made.publish()


PAIRS = [(end, end) for end in ENDS] + list(permutations(("settle", "drop", "refuse"), 2))


@pytest.mark.parametrize("arena", ARENAS)
@pytest.mark.parametrize(("end", "other"), PAIRS)
def test_the_engine_does_what_the_model_does(end, other, arena, monkeypatch):
    made, there = engine(end, other, arena, monkeypatch)
    done(end, made)
    told = [name for before, name in pairwise(["", *there.told]) if name != before or name == "meet"]
    assert told == modelled(end, other, arena)
