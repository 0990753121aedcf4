"""A loop of one's own over two machines: what it learns on demand is what it learns by stock FSDP2, step by step."""

import pytest
import torch
import work
from own_loops import CROSSED, FULL, HYBRID, Loop, on_demand, stock, worst

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def by_stock(machines):
    """Of each mesh, what stock FSDP2 has learned on the first process. It says the same everywhere."""
    found = {}

    def ask(mesh):
        if mesh not in found:
            found[mesh] = machines(2, 2).run(stock, Loop(mesh))[0]
        return found[mesh]

    return ask


def test_stock_fsdp2_learns_the_same_by_every_mesh(by_stock):
    """So it is a reference."""
    for mesh in (HYBRID, CROSSED):
        assert worst(by_stock(mesh), by_stock(FULL)) < 1e-6


LOOPS = [
    Loop(HYBRID),
    Loop(HYBRID, accumulate="slots"),
    Loop(HYBRID, "attached", average=True),
    Loop(FULL),
    Loop(FULL, "attached", average=True),
    Loop(CROSSED),
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: f"{loop.mesh}-{loop.by}-{loop.accumulate or 'as it suits'}")
def test_gradients_and_weights_are_those_of_stock_fsdp2_after_each_step(machines, by_stock, loop):
    every = machines(2, 2).run(on_demand, loop)
    for steps in every:
        assert worst(steps, by_stock(loop.mesh)) < 1e-6
        for mine, its in zip(steps, every[0], strict=True):
            assert all(torch.equal(mine.weights[name], its.weights[name]) for name in mine.weights)


UNEVEN = ((3, 1, 2), (0, 0, 2), (1, 4, 0))  # of microbatches, of three processes in each minibatch


def both(rank, loop):
    return stock(rank, loop), on_demand(rank, loop)


@pytest.mark.parametrize("here", [(2, 1), (1, 2), (1, 1, 1)], ids=str)
def test_machines_may_have_any_number_of_processes(machines, here):
    pool = machines(*here)
    try:
        for theirs, ours in pool.run(both, Loop(counts=UNEVEN)):
            assert worst(ours, theirs) < 1e-6
    finally:
        pool.stop()


def locked(rank):  # noqa: ARG001
    return work.told(lambda: on_demand(0, Loop(accumulate="locked")))


def test_one_sum_for_all_is_refused_beyond_a_network(machines):
    for words in machines(2, 2).run(locked):
        assert "over a network, which cannot add to a sum" in words
        assert "slots" in words
