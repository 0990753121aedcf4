"""Weights that change, beside what habits hold: units kept whole, units gathered ahead, pushes under way."""

import time

import nets
import pytest
import torch
import torch.distributed as dist
import work
from work import Case, evaluate, unsharded

from odc_engine.runs.verify import BOUND

PAIR = Case((2, 1))

CHANGES = {
    "step": lambda own: torch.optim.AdamW(own).step(),
    "fused step": lambda own: torch.optim.AdamW(own, fused=True).step(),
    "in place": lambda own: [p.mul_(2) for p in own],
    "in place on the shard": lambda own: [p.to_local().mul_(2) for p in own],
}
# Of what units; whether an evaluation is before, and one that is refused behind the change.
STATES = [
    (("layers",), False, True, True),
    (("layers",), True, False, True),
    ((), True, True, True),
    ((), False, False, True),
    (("layers",), True, True, False),
    (("layers",), True, False, False),
]


@pytest.mark.parametrize(("units", "evaluated", "reshard", "tried"), STATES)
@pytest.mark.parametrize("change", CHANGES)
def test_forward_after_a_change_is_refused_until_publish(pools, change, units, evaluated, reshard, tried):
    case = PAIR.but(units=units, reshard=reshard)
    assert pools(2).run(changed, case, change, evaluated, tried) == [(tried, True)] * 2


def changed(rank, case, change, evaluated, tried):
    with work.device(case) as (model, comm):
        own = list(model.parameters())  # before an evaluation after which units stay whole, and show other parameters
        work.minibatch(case, rank, model, comm)
        if evaluated:
            comm.publish()
            evaluate(case, model, rank)
        with torch.no_grad():
            CHANGES[change](own)
        refused = tried and work.refused(lambda: evaluate(case, model, rank))
        if tried:
            getattr(model, "reset_iter_state", lambda: None)()  # torch 2.13 has it
        comm.publish()
        return refused, as_alone(rank, case, model)


def as_alone(rank, case, model):
    """Whether an evaluation is the one of the same weights in one piece."""
    found, alone = evaluate(case, model, rank), evaluate(case, unsharded(case, model), rank)
    dist.barrier()
    return found == pytest.approx(alone, rel=1e-6)


DROPPED = [PAIR.but(accumulate="locked"), PAIR.but(accumulate="slots"), Case((4, 1, 2, 0), model=nets.Choosy)]


@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("case", DROPPED, ids=["locked", "slots", "choosy"])
def test_publish_drops_gradients_also_where_the_loop_does_not(pools, case, settles):
    """Also those that were never settled, and whose push is still under way."""
    expected = work.reference(case)
    for found in pools(len(case.counts)).run(dropped_then_again, case, settles):
        assert work.error(found, expected) <= BOUND


def dropped_then_again(rank, case, settles):
    with work.device(case) as (model, comm):
        push = comm.arena.push

        def late(unit, gradients):
            time.sleep(0.05 if rank == 0 else 0)
            push(unit, gradients)

        comm.arena.push = late
        case.loss(model, rank, 0, 7).backward()
        if settles:
            comm.settle()
        comm.publish()
        assert all(parameter.grad is None for parameter in model.parameters())
        comm.arena.push = push
        work.minibatch(case, rank, model, comm)
        return work.whole_gradients(model)


@pytest.mark.parametrize("backend", ["shm", "torch"])
def test_who_was_used_in_the_minibatch_before_counts_no_more(pools, backend):
    assert pools(2).run(without_gradients, backend) == [[{"0"}, {"1"}, {"2"}]] * 2


def without_gradients(rank, backend):
    """The layers of which there are none, in each minibatch."""
    found = []
    with work.device(Case((1, 1), model=nets.Dropping, backend=backend, sync="collective")) as (model, comm):
        for number in range(3):
            model(nets.tokens_of(rank, 0, number), number).sum().backward()
            comm.settle()
            found.append({name.split(".")[1] for name, p in model.named_parameters() if p.grad is None})
            comm.publish()
    return found
