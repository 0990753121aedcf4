"""Arenas between processes that come late at drawn points: every sum is exact, and what is gathered is what was
published, never a mixture. And a meeting or a wait that is left out is seen so."""

import pytest
import shards
import torch
import work
from interleaved import KINDS, Kind, Late, seen, without
from work import Case

from odc_engine import OnDemand

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


@pytest.mark.parametrize("name", KINDS)
def test_sums_and_weights_are_right_whoever_comes_late(pools, name):
    kind = KINDS[name]
    assert not any(pools(kind.devices).run(seen_of_seeds, kind, (1,)))


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", BY_KERNELS)
def test_so_they_are_where_kernels_move_the_bytes(pools, name):
    kind = BY_KERNELS[name]
    assert not any(pools(kind.devices).run(seen_of_seeds, kind, range(4)))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_so_they_are_in_many_orders(pools, name):
    kind = KINDS[name]
    assert not any(pools(kind.devices).run(seen_of_seeds, kind, range(10)))


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


def differ(found, expected):
    return any(not torch.equal(weights[name], expected[name]) for weights in found for name in expected)


@pytest.mark.parametrize("name", ["slots", pytest.param("a network", marks=pytest.mark.slow)])
def test_training_has_the_same_bits_whoever_comes_late(pools, name):
    kind = KINDS[name]
    expected = pools(kind.devices).run(trained, kind, None)[0]
    assert not differ(pools(kind.devices).run(trained, kind, 3), expected)


# What each device leaves out of its arena, all alike.


def no_meeting(number, every):
    def leave_out(arena):
        without(arena.memory, number, every)

    return leave_out


def patched(**changes):
    def leave_out(arena):
        for name, change in changes.items():
            setattr(arena, name, change(arena))

    return leave_out


def nothing(_arena):
    return lambda *_: None


def cleared_early(arena):
    """As if publishing came before the meeting in which all have read their sums."""
    complete = arena.complete

    def early():
        for unit in range(len(arena.units)):
            arena.clear(unit)
        complete()

    return early


def no_second_meeting(arena):
    """Counterparts' sums are fetched while their nodes may still add them up."""
    offer_sums, meet = arena.offer_sums, arena.meet

    def offer():
        arena.meet = nothing(arena)
        offer_sums()
        arena.meet = meet

    return offer


LEFT_OUT = {
    "the meeting in which pushes end": ("slots", no_meeting, 1, 2),
    "the meeting in which weights are published": ("slots", no_meeting, 0, 2),
    "the meeting in which pushes end, locked": ("locked", no_meeting, 1, 2),
    "the meeting before nodes fetch": ("nodes", no_meeting, 0, 3),
    "the meeting behind what nodes fetch": ("nodes", no_meeting, 1, 3),
    "the meeting in which pushes over a network end": ("a network", no_meeting, 1, 2),
    "the second meeting, behind sums of nodes": ("nodes over a network", patched, "offer_sums", no_second_meeting),
    "the wait for what a node brings in": ("nodes, locked, hierarchical", patched, "begin", nothing),
    "clearing behind the meeting": ("slots", patched, "complete", cleared_early),
    "the wait for what was sent": ("a network only", patched, "_arrive", nothing),
    "zeros for what was not pushed": ("kernels, and a network", patched, "complete", nothing),
}


def without_one(rank, kind, seeds, how, *args):
    leave_out = how(*args) if how is no_meeting else how(**{args[0]: args[1]})
    return seen_of_seeds(rank, kind, seeds, leave_out)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (i > 1) + [needs_triton] * (of in BY_KERNELS))
        for i, (name, (of, *_)) in enumerate(LEFT_OUT.items())
    ],
)
def test_what_is_left_out_is_seen(pools, name):
    of, how, *args = LEFT_OUT[name]
    kind = (KINDS | BY_KERNELS)[of]
    for seed in range(20):
        if any(pools(kind.devices).run(without_one, kind, (seed,), how, *args)):
            return
    raise AssertionError("nobody has seen it")
