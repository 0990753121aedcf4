"""Weights that change: what is refused until publish(), and what publish() has to reach."""

import time

import nets
import pytest
import torch
import torch.distributed as dist
import work
from torch import nn
from work import Case, evaluate, told, unsharded

from odc_engine.runs.verify import BOUND

UNEVEN = Case((4, 1, 2, 0))
PAIR = Case((2, 1))

CHANGES = {
    "step": lambda _, own, make: make(own).step(),
    "fused step": lambda _, own, make: make(own, fused=True).step(),
    "step one by one": lambda _, own, make: make(own, foreach=False).step(),
    "load_state_dict": lambda model, *_: model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()}),
    "in place": lambda _, own, __: [p.mul_(2) for p in own],
    "in place on the shard": lambda _, own, __: [p.to_local().mul_(2) for p in own],
}


STATES = [(("layers",), False, True), (("layers",), True, False), ((), True, True), ((), False, False)]


@pytest.mark.parametrize(("units", "evaluated", "reshard"), STATES)
@pytest.mark.parametrize("change", CHANGES)
def test_forward_after_an_unpublished_change_is_refused_and_publish_is_the_way_out(
    pools, change, units, evaluated, reshard
):
    case = PAIR.but(units=units, reshard=reshard)
    for refused, equal in pools(2).run(changed, case, change, evaluated):
        assert refused == "weights of root changed since they were published; call publish() on all devices"
        assert equal


def changed(rank, case, change, evaluated):
    with work.device(case) as (model, comm):
        own = list(model.parameters())  # before an evaluation after which units stay whole, and show other parameters
        work.minibatch(case, rank, model, comm)
        if evaluated:
            comm.publish()
            evaluate(case, model, rank)
        with torch.no_grad():
            CHANGES[change](model, own, torch.optim.AdamW)
        refused = told(lambda: evaluate(case, model, rank))
        getattr(model, "reset_iter_state", lambda: None)()  # torch 2.13 has it
        comm.publish()
        found, alone = evaluate(case, model, rank), evaluate(case, unsharded(case, model), rank)
        dist.barrier()
        return refused, found == pytest.approx(alone, rel=1e-6)


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


@pytest.mark.parametrize("reshard", [True, False], ids=["reshard", "keep"])
def test_publish_reaches_units_that_are_whole_since_an_evaluation(pools, reshard):
    for found, alone in pools(2).run(published_over_whole_units, PAIR.but(reshard=reshard)):
        assert found == pytest.approx(alone, rel=1e-6)


def published_over_whole_units(rank, case):
    with work.device(case) as (model, comm):
        own = list(model.parameters())
        evaluate(case, model, rank)
        with torch.no_grad():
            for parameter in own:
                parameter.mul_(3)
        comm.publish()
        alone = evaluate(case, tripled(case), rank)
        found = evaluate(case, model, rank)
        dist.barrier()
        return found, alone


def tripled(case):
    model = case.fresh()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def test_publish_drops_gradients_also_where_the_loop_does_not(pools):
    case = UNEVEN.but(model=nets.Choosy)
    expected = work.reference(case)
    for found in pools(4).run(gradients_again, case):
        assert work.error(found, expected) <= BOUND


def gradients_again(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        comm.publish()
        assert all(parameter.grad is None for parameter in model.parameters())
        work.minibatch(case, rank, model, comm)
        return work.whole_gradients(model)


@pytest.mark.parametrize("accumulate", ["locked", "slots"])
def test_gradients_that_were_never_settled_are_dropped_too(pools, accumulate):
    """Also those whose push is still under way when publish() is called."""
    case = Case((2, 1), accumulate=accumulate)
    expected = work.reference(case)
    for found in pools(2).run(dropped_then_again, case):
        assert work.error(found, expected) <= BOUND


def dropped_then_again(rank, case):
    with work.device(case) as (model, comm):
        push = comm.arena.push

        def late(unit, gradients):
            time.sleep(0.1 if rank == 0 else 0)
            push(unit, gradients)

        comm.arena.push = late
        case.loss(model, rank, 0, 7).backward()
        comm.publish()
        comm.arena.push = push
        work.minibatch(case, rank, model, comm)
        return work.whole_gradients(model)


@pytest.mark.parametrize("backend", ["shm", "torch"])
def test_who_was_used_in_the_minibatch_before_counts_no_more(pools, backend):
    case = Case((2, 2), model=nets.Dropping, backend=backend, sync="collective", loss=by_minibatch)
    left_out = pools(2).run(layers_without_gradients, case)
    assert left_out == [[{"0"}, {"1"}, {"2"}]] * 2


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


def test_forward_between_settle_and_publish_is_refused(pools):
    for found in pools(2).run(early_evaluation, PAIR):
        assert found == [
            "forward of root between settle() and publish(), when peers may change their weights; "
            "evaluate after publish()",
            "settle() twice for one minibatch; call publish() after the optimizer's step",
        ]


def early_evaluation(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        return [told(lambda: evaluate(case, model, rank)), told(comm.settle)]


def test_a_gather_that_ran_ahead_for_nothing_does_not_outlive_its_weights(pools):
    """An evaluation leaves out the layer that was gathered ahead of time; then weights change."""
    case = Case((1, 1), model=nets.Dropping, prefetch=2)
    for found, alone in pools(2).run(gathered_for_nothing, case):
        assert found == pytest.approx(alone, rel=1e-6)


def gathered_for_nothing(rank, case):
    with work.device(case) as (model, comm):
        own = list(model.parameters())
        for left_out in (0, 1, 2):
            with torch.no_grad():
                model(nets.tokens_of(0, 0), left_out)
                for parameter in own:
                    parameter.mul_(1.5)
            comm.publish()
        alone = evaluate(case, unsharded(case, model), rank)
        found = evaluate(case, model, rank)
        dist.barrier()
        return found, alone
