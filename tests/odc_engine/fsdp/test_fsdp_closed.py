"""What is left after close(): gradients that somebody still reads, and calls that come too late."""

import gc
from pathlib import Path

import pytest
import torch
import work
from work import Case

CASE = Case((2, 1), accumulate="slots")


def mapped():
    """Shared files in this process's memory."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:odc")


def gradients_kept(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        expected = [p.grad.to_local().clone() for p in model.parameters()]
    with work.device(case):  # takes the same addresses, if they are free
        found = [p.grad.to_local() for p in model.parameters()]
        return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_gradients_can_be_read_after_close(pools):
    assert pools(2).run(gradients_kept, CASE) == [True, True]


def maps_left(rank, case):
    before = mapped()
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        during = mapped()
    closed = mapped()
    model.zero_grad()
    return during - before, closed - before, mapped() - before


def test_memory_goes_with_the_last_gradient(pools):
    """The own arena alone holds gradients; peers' arenas and all pages go at once."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    assert pools(2).run(maps_left, CASE) == [(4, 1, 0)] * 2


def too_late(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        comm.publish()
    calls = (lambda: case.loss(model, rank, 0, 0), comm.settle, comm.publish, comm.take)
    return [work.told(call) for call in calls]


def test_calls_after_close_are_refused(pools):
    closed = "this communication is closed; make a new OnDemand of the model"
    assert pools(2).run(too_late, CASE) == [[closed] * 4] * 2
