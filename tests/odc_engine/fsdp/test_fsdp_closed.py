"""What is left after close(): gradients that somebody still reads, and calls that come too late."""

import gc
from pathlib import Path

import pytest
import torch
import work
from work import Case

from odc_engine import OnDemand

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


EVEN = CASE.but(counts=(2, 2))


def stock_training(rank, case, first):
    """Weights after two steps of stock FSDP2, once something has been tried with the model."""
    model = work.shard(case, case.fresh())
    assert first is None or first(case, rank, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        for m in range(case.counts[rank]):
            case.loss(model, rank, m, number).backward()
        optimizer.step()
        optimizer.zero_grad()
    return work.whole_parameters(model)


def evaluated_and_closed(case, rank, model):
    odc = OnDemand(model)
    work.evaluate(case, model, rank)
    work.minibatch(case, rank, model, odc)
    odc.publish()
    work.evaluate(case, model, rank)
    odc.close()
    return True


def refused_late(_case, _rank, model):
    return work.refused(lambda: OnDemand(model, devices_per_node=3))


def refused_by_a_hook(_case, _rank, model):
    hook = model.head.weight.register_post_accumulate_grad_hook(lambda _: None)
    refused = work.refused(lambda: OnDemand(model))
    hook.remove()
    return refused


@pytest.mark.parametrize("first", [evaluated_and_closed, refused_late, refused_by_a_hook])
def test_stock_communication_is_back_after_close_and_after_every_refusal(pools, first):
    expected = pools(2).run(stock_training, EVEN, None)[0]
    for found in pools(2).run(stock_training, EVEN, first):
        assert work.error(found, expected) <= 1e-6
