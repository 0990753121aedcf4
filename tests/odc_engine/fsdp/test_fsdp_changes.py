"""Weights that change: what is refused until publish(), and what publish() has to reach."""

import time

import nets
import pytest
import torch
import torch.distributed as dist
import work
from torch import nn
from work import Case, evaluate, unsharded

from odc_engine.runs.verify import BOUND

PAIR = Case((2, 1))

CHANGES = {
    "step": lambda _, own, make: make(own).step(),
    "fused step": lambda _, own, make: make(own, fused=True).step(),
    "step one by one": lambda _, own, make: make(own, foreach=False).step(),
    "load_state_dict": lambda model, *_: model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()}),
    "in place": lambda _, own, __: [p.mul_(2) for p in own],
    "in place on the shard": lambda _, own, __: [p.to_local().mul_(2) for p in own],
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
            CHANGES[change](model, own, torch.optim.AdamW)
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


def test_nothing_is_refused_where_nothing_changed(pools):
    """state_dict, full_tensor, zero_grad and an optimizer of other parameters leave weights alone."""
    assert pools(2).run(unchanged, PAIR) == [None, None]


def unchanged(rank, case):
    other = nn.Linear(2, 2)
    with work.device(case) as (model, _):
        evaluate(case, model, rank)
        model.state_dict()
        work.whole_parameters(model)
        model.zero_grad()
        other(torch.ones(2)).sum().backward()
        torch.optim.AdamW(other.parameters(), fused=True).step()
        evaluate(case, model, rank)
        dist.barrier()


@pytest.mark.parametrize("sync", ["on-demand", "collective"])
def test_evaluation_between_minibatches_changes_nothing(pools, sync):
    case = Case((2, 2), sync=sync, accumulate="slots")
    with_evaluation, plain = (pools(2).run(evaluated_training, case, evals)[0] for evals in (2, 0))
    assert all(torch.equal(with_evaluation[name], value) for name, value in plain.items())


def evaluated_training(rank, case, evaluations):
    with work.device(case) as (model, comm):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for number in range(3):
            work.train(case, rank, model, comm, optimizer, [number])
            evaluate(case, model, rank, evaluations)
        return work.whole_parameters(model)


def test_evaluation_that_takes_devices_unequally_long_reads_no_newer_weights(pools):
    """Device 0 is at publish() again while device 1 still evaluates."""
    for found, alone in pools(2).run(late_evaluation, PAIR):
        assert found == pytest.approx(alone, rel=1e-6)


def late_evaluation(rank, case):
    with work.device(case) as (model, comm):
        alone = evaluate(case, unsharded(case, model), rank, 20)
        own = list(model.parameters())
        found = evaluate(case, model, rank, 20 * rank)
        with torch.no_grad():
            for parameter in own:
                parameter.mul_(3)
        comm.publish()
        return found, alone[: 20 * rank]


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
    case = Case((2, 2), model=nets.Dropping, backend=backend, sync="collective", loss=by_minibatch)
    assert pools(2).run(layers_without_gradients, case) == [[{"0"}, {"1"}, {"2"}]] * 2


def by_minibatch(model, rank, microbatch, minibatch):
    return model(nets.tokens_of(rank, microbatch, minibatch), minibatch).sum()


def layers_without_gradients(rank, case):
    found = []
    with work.device(case) as (model, comm):
        for number in range(3):
            work.minibatch(case, rank, model, comm, number)
            found.append({name.split(".")[1] for name, p in model.named_parameters() if p.grad is None})
            comm.publish()
    return found


def test_a_gather_that_ran_ahead_for_nothing_does_not_outlive_its_weights(pools):
    """An evaluation leaves out the layer that was gathered ahead of time; then weights change."""
    case = Case((1, 1), model=nets.Dropping, prefetch=2)
    assert pools(2).run(gathered_for_nothing, case) == [True, True]


def gathered_for_nothing(rank, case):
    with work.device(case) as (model, comm):
        own = list(model.parameters())
        for left_out in (0, 1, 2):
            with torch.no_grad():
                model(nets.tokens_of(0, 0), left_out)
                for parameter in own:
                    parameter.mul_(1.5)
            comm.publish()
        return as_alone(rank, case, model)
