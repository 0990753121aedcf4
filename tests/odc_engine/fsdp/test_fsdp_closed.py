"""What is left after close(): gradients that somebody still reads, and calls that come too late."""

import contextlib
import gc
from pathlib import Path

import nets
import pytest
import torch
import work
from own_loops import FULL, HYBRID, sharded
from work import Case

from odc_engine import OnDemand, check

CASE = Case((2, 1), accumulate="slots")


def mapped():
    """Shared files in this process's memory."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:odc")


def left(rank):
    """How many files are mapped before close() and after it, and whether gradients can be read as ever."""
    before = mapped()
    with work.device(CASE) as (model, comm):
        work.minibatch(CASE, rank, model, comm)
        during = mapped()
        expected = [p.grad.to_local().clone() for p in model.parameters()]
    kept = [p.grad for p in model.parameters()]
    after = mapped()
    with work.device(CASE):  # takes the same addresses, if they are free
        same = [torch.equal(one.to_local(), other) for one, other in zip(kept, expected, strict=True)]
    return during - before, after - before, all(same)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_memory_goes_at_once_and_gradients_can_be_read(pools):
    assert pools(2).run(left) == [(4, 0, True)] * 2


def stock_training(rank, mesh, first):
    """Weights after two steps of stock FSDP2, once something has been tried with the model."""
    model = sharded(mesh)
    assert first is None or first(rank, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        for m in range(2):
            nets.loss(model, rank, m, number).backward()
        optimizer.step()
        optimizer.zero_grad()
    return work.whole_parameters(model)


def evaluated_and_closed(rank, model):
    with contextlib.closing(OnDemand(model)) as odc:
        work.evaluate(CASE, model, rank)
        with check(odc):
            for m in range(1 + rank):
                nets.loss(model, rank, m).backward()
            odc.settle()
        odc.publish()
        work.evaluate(CASE, model, rank)
    return True


def refused_late(_rank, model):
    return work.refused(lambda: OnDemand(model, devices_per_node=3))


def refused_by_a_hook(_rank, model):
    hook = model.head.weight.register_post_accumulate_grad_hook(lambda _: None)
    refused = work.refused(lambda: OnDemand(model))
    hook.remove()
    return refused


TRIED = [(FULL, evaluated_and_closed), (HYBRID, evaluated_and_closed), (FULL, refused_late), (FULL, refused_by_a_hook)]


@pytest.mark.parametrize(("mesh", "first"), TRIED)
def test_stock_communication_is_back_after_close_and_after_every_refusal(pools, mesh, first):
    pool = pools(4 if mesh == HYBRID else 2)
    expected = pool.run(stock_training, mesh, None)[0]
    for found in pool.run(stock_training, mesh, first):
        assert work.error(found, expected) <= 1e-6
