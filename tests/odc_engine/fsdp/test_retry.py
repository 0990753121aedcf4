"""A microbatch that runs out of memory anywhere is halved, and the gradients are those of the microbatch unsplit."""

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import nets
import pytest
import torch
import work
from own_loops import HYBRID, sharded
from short_memory import OutOfMemory, batch, loss
from torch import nn
from torch.nn import functional as F  # noqa: N812
from work import Case

from odc_engine import OnDemand, pack
from odc_engine.fsdp.retry import Retry, halved
from odcsim.errors import InputError

CASE = Case((1, 1))


def swept(rank: int, case: Case, points: list[tuple[int, ...]]) -> tuple[int, set[int], float, list[float]]:
    """The same minibatch for each of the points where device 0 runs out of memory, after one at none. How many
    operations it has, how often memory ended at each of the points, the worst error, and all losses."""
    with work.device(case) as (model, odc):
        parameters, errors, losses, raised = dict(model.named_parameters()), [], [], set()
        for at in [(), *points]:
            with OutOfMemory(*(at if rank == 0 else ())) as memory:
                losses.append(odc.retry(memory.arming(partial(loss, model)), batch(rank)).item())
            odc.settle()
            # Shards, with no collective: a thread of gloo's would free tensors of Python thousands of times.
            found = {name: p.grad if p.grad is None else p.grad.to_local().clone() for name, p in parameters.items()}
            if not at:
                expected, operations = found, memory.count
            else:
                raised.add(memory.raised)
            errors.append(work.error(found, expected))
            odc.publish()
        return operations, raised, max(errors), losses


def check(pools, case: Case, step: int, first: int = 1, again: int = 0) -> None:
    """Points step by step, and perhaps another so many operations behind each."""
    operations = pools(2).run(swept, case, [])[0][0]
    points = [(k, k + again) if again else (k,) for k in range(first, operations + 1, step)]
    outcomes = pools(2).run(swept, case, points, timeout=600)
    assert [raised for _, raised, *_ in outcomes] == [{1 + bool(again)}, {0}]
    for _, _, error, losses in outcomes:
        assert error < 1e-5
        assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)


# Of each model, the step between operations, the first, and where a half runs out of memory, too.
SWEPT = {
    "plain": (CASE, 7),
    "kept whole": (CASE.but(reshard=False), 23, 4),
    "tied": (CASE.but(model=partial(nets.Net, tied=True)), 23, 7),
    "recomputed inside": (CASE.but(model=partial(nets.Net, recompute="no")), 23, 10),
    "recomputed around": (CASE.but(model=partial(nets.Net, around="no")), 23, 13),
    "half of it frozen": (CASE.but(model=nets.Half), 23, 16),
    "slots": (CASE.but(accumulate="slots"), 23, 19),
    "prefetch": (CASE.but(prefetch=1), 23, 22),
    "older torch": (CASE.but(hides="set_reduce_scatter_unused_params"), 23, 25),
    "a half, too": (CASE, 23, 1, 160),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEPT)
def test_gradients_are_those_of_the_microbatch_unsplit(pools, name):
    check(pools, *SWEPT[name])


def test_at_some_operations_they_are(pools):
    check(pools, CASE, step=97)


def out_of_memory(rank: int) -> list[float]:
    """The norm unsplit, and where memory ended in one of two replicas."""
    model, norms = sharded(HYBRID), []
    with contextlib.closing(OnDemand(model, timeout=20)) as odc:
        for points in [(), (350,)]:
            with OutOfMemory(*(points if rank == 2 else ())) as memory:
                odc.retry(memory.arming(partial(loss, model)), batch(rank))
            odc.settle()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1e9).full_tensor().item())
            odc.publish()
    return norms


def test_out_of_memory_in_one_replica_is_its_own_affair(pools):
    for unsplit, split in pools(4).run(out_of_memory):
        assert split == pytest.approx(unsplit, rel=1e-6)


# What is refused, and how a minibatch goes on.


class Drops(nets.Net):
    def forward(self, tokens, turn):
        return F.dropout(super().forward(tokens, turn), 0.1)


class Counts(nets.Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens, turn):
        self.seen += 1
        return super().forward(tokens, turn)


def twice(model, rows):
    return sum(loss(model, half) for half in halved(rows))


def backward_too(model, rows):
    loss(model, rows).backward()
    return torch.zeros(())


def refused(rank: int, case: Case, computed: Callable, rows, point: int) -> tuple[bool, bool]:
    """Whether retry() is refused, then settle(); then a minibatch that is right."""
    with work.device(case) as (model, odc):
        with OutOfMemory(*([point] if rank == 0 else [])) as memory:
            run = memory.arming(partial(computed, model))
            found = work.refused(lambda: odc.retry(run, rows)), work.refused(odc.settle)
        odc.publish()
        odc.retry(partial(loss, model), batch(rank))
        odc.settle()
        odc.publish()
        return found


LATE = 300  # an operation in the middle of the backward pass
BY_ITSELF, NOWHERE = [(True, True), (False, True)], [(False, False)] * 2
REFUSALS = {
    "dropout": (CASE.but(model=Drops), loss, batch(0), LATE, BY_ITSELF),
    "a buffer": (CASE.but(model=Counts), loss, batch(0), LATE, BY_ITSELF),
    "two forward passes": (CASE, twice, batch(0), 600, BY_ITSELF),
    "one sample": (CASE, loss, {name: value[:1] for name, value in batch(0).items()}, LATE, BY_ITSELF),
    "dropout, and nothing was pushed": (CASE.but(model=Drops), loss, batch(0), 100, NOWHERE),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_would_not_be_equal_is_refused_on_all_devices(pools, name):
    *how, expected = REFUSALS[name]
    assert pools(2).run(refused, *how) == expected


def test_a_backward_pass_inside_is_refused(pools):
    assert all(retries for retries, _ in pools(2).run(refused, CASE, backward_too, batch(0), 0))


def under_meetings(rank: int) -> bool:
    with work.device(CASE.but(sync="collective")) as (model, odc):
        return work.refused(lambda: odc.retry(partial(loss, model), batch(rank)))


def test_so_is_a_retry_under_collectives(pools):
    assert pools(2).run(under_meetings) == [True] * 2


# Halves.


def test_halves_begin_when_all_that_was_pushed_has_arrived():
    model, order, lives = nn.Linear(1, 1), [], iter([False, True, True])
    minibatch = SimpleNamespace(given=Counter(), torn=False, deferred=False)
    minibatch.wait_for_pushes = lambda: order.append("waits")
    loop = SimpleNamespace(units=[], model=model, minibatch=minibatch)
    loop.start_anew = lambda: order.append("anew")

    def loss(rows):
        order.append(len(rows))
        if not next(lives):
            raise torch.OutOfMemoryError
        return model(rows).sum()

    Retry(loop).run(loss, torch.ones(4, 1), lambda rows: (rows[:2], rows[2:]))
    assert order == [4, "waits", "anew", 2, 2]


def test_packed_samples_are_halved_between_samples():
    samples, weights = [torch.arange(n) for n in (3, 4, 5)], [torch.full((n,), 0.1) for n in (3, 4, 5)]
    for half, own in zip(halved(pack(samples, weights)), (slice(0, 1), slice(1, 3)), strict=True):
        alone = pack(samples[own], weights[own])
        assert half.lengths == alone.lengths
        for part in ("tokens", "targets", "weights"):
            assert torch.equal(getattr(half, part), getattr(alone, part))


@pytest.mark.parametrize("rows", [[1], torch.zeros(()), 7, {"a": [1, 2], "b": [1, 2, 3]}, {"a": [1]}])
def test_what_cannot_be_halved(rows):
    with pytest.raises(InputError):
        halved(rows)
