"""A loop of one's own over two machines: what it learns on demand is what it learns by stock FSDP2, step by step."""

import pytest
import torch
import work
from own_loops import CROSSED, FULL, HYBRID, Loop, both, on_demand, stock, worst

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def by_stock(machines):
    """By each mesh, what stock FSDP2 has learned on the first process. It says the same everywhere."""
    return {mesh: machines(2, 2).run(stock, Loop(mesh))[0] for mesh in (FULL, HYBRID, CROSSED)}


def test_stock_fsdp2_learns_the_same_by_every_mesh(by_stock):
    """So it is a reference."""
    for mesh in (HYBRID, CROSSED):
        assert worst(by_stock[mesh], by_stock[FULL]) < 1e-6


LOOPS = [Loop(mesh, by) for mesh in (HYBRID, FULL) for by in ("hand", "attached")]
LOOPS += [Loop(HYBRID, how={"accumulate": "slots"}), Loop(CROSSED)]


@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_gradients_and_weights_are_those_of_stock_fsdp2_after_each_step(machines, by_stock, loop):
    every = machines(2, 2).run(on_demand, loop)
    for steps in every:
        assert worst(steps, by_stock[loop.mesh]) < 1e-6
        for mine, its in zip(steps, every[0], strict=True):
            assert all(torch.equal(mine.weights[name], its.weights[name]) for name in mine.weights)


@pytest.mark.parametrize("here", [(2, 1), (1, 2), (1, 1, 1)], ids=str)
def test_machines_may_have_any_number_of_processes(machines, here):
    pool = machines(*here)
    try:
        for theirs, ours in pool.run(both, Loop(counts=((3, 1, 2), (0, 0, 2), (1, 4, 0)))):
            assert worst(ours, theirs) < 1e-6
    finally:
        pool.stop()


def locked(rank):
    return work.refused(lambda: on_demand(rank, Loop(how={"accumulate": "locked"})))


def test_one_sum_for_all_is_refused_beyond_a_network(machines):
    assert machines(2, 2).run(locked) == [True] * 4
