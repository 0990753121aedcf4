"""Arenas between processes that come late at drawn points: every sum is exact, and what is gathered is what was
published, never a mixture. And a meeting or a wait that is left out is seen so."""

import pytest
import shards
import torch
import work
from interleaved import KINDS, Kind, Late, seen
from work import Case

from odc_engine import OnDemand
from odc_engine.backends.base import MAIN

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)
BY_KERNELS = {
    "kernels": Kind(2, kernels=True),
    "kernels, locked": Kind(2, "locked", kernels=True),
    "kernels, and a network": Kind(3, machines=(2, 1), kernels=True),
    "kernels, nodes over a network": Kind(4, "locked", machines=(2, 2), per_node=2, kernels=True),
}


def seen_of_seeds(rank, kind, seeds, *args):
    return [problem for seed in seeds for problem in seen(rank, kind, seed, *args)]


ORDERS = [pytest.param(name, range(1, 2), id=name) for name in KINDS]
ORDERS += [pytest.param(name, range(2, 11), marks=pytest.mark.slow, id=f"{name}, many orders") for name in KINDS]
ORDERS += [pytest.param(name, range(4), marks=[needs_triton, pytest.mark.slow], id=name) for name in BY_KERNELS]


@pytest.mark.parametrize(("name", "seeds"), ORDERS)
def test_sums_and_weights_are_right_whoever_comes_late(pools, name, seeds):
    kind = (KINDS | BY_KERNELS)[name]
    assert not any(pools(kind.devices).run(seen_of_seeds, kind, seeds))


CASE = Case((2, 0, 1), accumulate="slots")


def trained(rank, kind, seed):
    """A model through OnDemand."""
    memory = kind.memory()
    if seed is not None:
        Late(seed, rank, kind.devices).around(memory, "check", "meet", "fetch_all", "send_all", "arrive")
    model = work.shard(CASE, CASE.fresh())
    odc = OnDemand(model, memory=memory, accumulate=kind.accumulate, devices_per_node=kind.per_node, timeout=30)
    try:
        work.train(CASE, rank, model, odc, torch.optim.AdamW(model.parameters(), lr=1e-2), range(4))
        return work.whole_parameters(model)
    finally:
        odc.close()


@pytest.mark.parametrize("name", ["slots", pytest.param("a network", marks=pytest.mark.slow)])
def test_training_has_the_same_bits_whoever_comes_late(pools, name):
    kind = KINDS[name]
    expected = pools(kind.devices).run(trained, kind, None)[0]
    for weights in pools(kind.devices).run(trained, kind, 3):
        assert all(torch.equal(weights[name], value) for name, value in expected.items())


# What each device leaves out of its arena, all alike.


def meeting(arena, number, every):
    """One of so many in training loops. On all devices, so that the others meet as before."""
    meet, count = arena.memory.meet, iter(range(1 << 30))

    def fewer(room):
        if room != MAIN or next(count) % every != number:
            meet(room)

    arena.memory.meet = fewer


def call(arena, name):
    setattr(arena, name, lambda *_: None)


def cleared_early(arena):
    """As if publishing came before the meeting in which all have read their sums."""
    complete = arena.complete

    def early():
        for unit in range(len(arena.units)):
            arena.clear(unit)
        complete()

    arena.complete = early


def second_meeting(arena):
    """Counterparts' sums are fetched while their nodes may still add them up."""
    offer_sums = arena.offer_sums
    arena.offer_sums = lambda: offer_sums() and False


LEFT_OUT = {
    "the meeting in which pushes end": ("slots", meeting, 1, 2),
    "the meeting in which weights are published": ("slots", meeting, 0, 2),
    "the meeting in which pushes end, locked": ("locked", meeting, 1, 2),
    "the meeting before nodes fetch": ("nodes", meeting, 0, 3),
    "the meeting behind what nodes fetch": ("nodes", meeting, 1, 3),
    "the meeting in which pushes over a network end": ("a network", meeting, 1, 2),
    "the second meeting, behind sums of nodes": ("nodes over a network", second_meeting),
    "the wait for what a node brings in": ("nodes, locked, hierarchical", call, "begin"),
    "clearing behind the meeting": ("slots", cleared_early),
    "the wait for what was sent": ("a network only", call, "_arrive"),
    "zeros for what was not pushed": ("kernels, and a network", call, "complete"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (i > 1) + [needs_triton] * (of in BY_KERNELS))
        for i, (name, (of, *_)) in enumerate(LEFT_OUT.items())
    ],
)
def test_what_is_left_out_is_seen(pools, name):
    of, leave_out, *args = LEFT_OUT[name]
    kind = (KINDS | BY_KERNELS)[of]
    for seed in range(20):
        if any(pools(kind.devices).run(seen_of_seeds, kind, (seed,), leave_out, *args)):
            return
    raise AssertionError("nobody has seen it")
