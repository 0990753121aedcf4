"""A loop of one's own over two machines: what it learns on demand is what it learns by stock FSDP2, step by step."""

import pytest
import torch
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
    Loop(mesh, by, accumulate=accumulate)
    for mesh, by, accumulate in [
        (HYBRID, "hand", "locked"),
        (HYBRID, "attached", "locked"),
        (HYBRID, "hand", "slots"),
    ]
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: f"{loop.mesh}-{loop.by}-{loop.accumulate}")
def test_gradients_and_weights_are_those_of_stock_fsdp2_after_each_step(machines, by_stock, loop):
    every = machines(2, 2).run(on_demand, loop)
    for steps in every:
        assert worst(steps, by_stock(loop.mesh)) < 1e-6
        for mine, its in zip(steps, every[0], strict=True):
            assert all(torch.equal(mine.weights[name], its.weights[name]) for name in mine.weights)
