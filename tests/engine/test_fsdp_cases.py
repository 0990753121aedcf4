"""What goes silently wrong under FSDP2 when communication is replaced: each case a model, or a habit, of its own."""

from copy import deepcopy
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import nets  # noqa: E402
import torch.distributed as dist  # noqa: E402
import work  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402
from work import Case  # noqa: E402

from odc_engine.fsdp import OnDemand  # noqa: E402
from odc_engine.verify import BOUND  # noqa: E402
from odcsim.errors import InputError  # noqa: E402

UNEVEN = Case((4, 1, 2, 0))
PAIR = Case((2, 1))

MODELS = {
    "plain": nets.Net,
    "tied embeddings": partial(nets.Net, tied=True),
    "recomputed inside": partial(nets.Net, recompute="plain"),
    "recomputed inside, reentrant": partial(nets.Net, recompute="reentrant"),
    "recomputed around": partial(nets.Net, around="plain"),
    "recomputed around, reentrant": partial(nets.Net, around="reentrant"),
    "layers left out": nets.Dropping,
    "frozen": nets.Half,
    "empty shards": nets.Narrow,
}


def worst(pools, case: Case) -> float:
    expected = work.reference(case)
    return max(work.error(found, expected) for found in pools(len(case.counts)).run(work.gradients, case))


@pytest.mark.parametrize("reshard", [True, False], ids=["reshard", "keep"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_models(pools, model, reshard):
    assert worst(pools, UNEVEN.but(model=model, reshard=reshard)) <= BOUND


@pytest.mark.parametrize("units", [(), ("layers", "embedding"), ("layers", "embedding", "head"), ("layers.0", "head")])
def test_units(pools, units):
    """The root alone, or embedding and head beside the layers: the root may be left with nothing of its own."""
    assert worst(pools, UNEVEN.but(units=units)) <= BOUND


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_gathers_that_run_ahead(pools, prefetch):
    assert worst(pools, UNEVEN.but(prefetch=prefetch)) <= BOUND


def test_gathers_that_run_ahead_of_layers_that_are_left_out(pools):
    assert worst(pools, UNEVEN.but(prefetch=2, model=nets.Dropping)) <= BOUND


@pytest.mark.parametrize("accumulate", ["locked", "slots"])
def test_who_used_nothing_gets_gradients_and_who_is_used_by_nobody_none(pools, accumulate):
    case = UNEVEN.but(model=nets.Choosy, accumulate=accumulate)
    names = pools(4).run(names_with_gradients, case)
    expected = {name for name, gradient in work.reference(case).items() if gradient is not None}
    assert names == [expected] * 4
    assert "layers.0.never" not in expected


def names_with_gradients(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        return {name for name, p in model.named_parameters() if p.grad is not None}


def test_nobody_computed(pools):
    """A minibatch without any microbatch leaves weights alone."""
    case = Case((0, 0))
    found = pools(2).run(work.trained, case, 2)[0]
    assert all(torch.equal(found[name], value) for name, value in case.fresh().named_parameters())


@pytest.mark.parametrize("model", [nets.Net, nets.Narrow, nets.Choosy])
def test_clipping_across_devices_with_unequal_counts(pools, model):
    case = UNEVEN.but(model=model)
    reference = case.fresh().double()
    gradients = work.reference(case, model=reference)
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.05).item()
    for found, clipped in pools(4).run(clip, case):
        assert found == pytest.approx(norm, rel=1e-5)
        assert work.error(clipped, gradients) <= BOUND


def clip(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        return work.whole(norm).item(), work.whole_gradients(model)


# Weights that change.


def told(call) -> str:
    """The refusal's one line, or what happened instead."""
    try:
        call()
    except InputError as error:
        return str(error)
    return "nothing was refused"


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
        model.reset_iter_state()
        comm.publish()
        found, alone = evaluate(case, model, rank), evaluate(case, unsharded(case, model), rank)
        dist.barrier()
        return refused, found == pytest.approx(alone, rel=1e-6)


def evaluate(case, model, rank, microbatches=3):
    with torch.no_grad():
        return [case.loss(model, rank, m, 77).item() for m in range(microbatches)]


def unsharded(case, model):
    """The same weights in one piece."""
    weights = work.whole_parameters(model)
    alone = case.fresh()
    alone.load_state_dict(weights, strict=False)
    return alone


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


def test_training_goes_on_from_a_saved_state_as_if_never_stopped(pools):
    case = Case((3, 1), accumulate="slots")
    for resumed, straight in pools(2).run(stopped_and_resumed, case):
        assert all(torch.equal(resumed[name], value) for name, value in straight.items())


def stopped_and_resumed(rank, case):
    with work.device(case) as (model, comm):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        work.train(case, rank, model, comm, optimizer, range(2))
        saved = deepcopy((model.state_dict(), optimizer.state_dict()))
        work.train(case, rank, model, comm, optimizer, range(2, 4))
        straight = work.whole_parameters(model)
    torch.manual_seed(1)
    with work.device(case, case.model()) as (model, comm):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        comm.publish()
        work.train(case, rank, model, comm, optimizer, range(2, 4))
        return work.whole_parameters(model), straight


def test_a_model_can_be_given_to_another_engine(pools):
    expected = work.reference(PAIR)
    for found in pools(2).run(engine_after_engine, PAIR):
        assert work.error(found, expected) <= BOUND


def engine_after_engine(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
    comm = OnDemand(model)
    work.minibatch(case, rank, model, comm)
    found = work.whole_gradients(model)
    comm.close()
    return found


# Refusals.


def dim_one():
    return fully_shard(nn.Linear(8, 8), shard_placement_fn=lambda p: Shard(p.dim() - 1))


def two_dimensional_mesh():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return fully_shard(nn.Linear(8, 8), mesh=mesh)


def steps_in_backward():
    model = fully_shard(nn.Linear(8, 8))
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    return model


def mixed_dtypes():
    frozen = nn.Linear(8, 8).bfloat16().requires_grad_(False)
    return fully_shard(nn.Sequential(nn.Linear(8, 8), frozen))


def mixed_dtypes_both_trained():
    return fully_shard(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16()))


def several_modules_in_a_unit():
    model = nets.Net()
    fully_shard([model.layers[0], model.layers[1]])
    return fully_shard(model)


def ignored_parameters():
    model = nets.Net()
    return fully_shard(model, ignored_params={model.head.weight})


def only_layers_sharded():
    model = nets.Net()
    for layer in model.layers:
        fully_shard(layer)
    return model


REFUSED = [
    (nets.Net, "the model is not sharded; call torch.distributed.fsdp.fully_shard on it first"),
    (only_layers_sharded, "the model is not sharded"),
    (dim_one, "parameter weight is placed as S(1); shard along the first dimension"),
    (two_dimensional_mesh, "parameter weight lives on a 2-dimensional mesh; use a one-dimensional mesh"),
    (steps_in_backward, "parameter weight has a hook that steps in backward; step after settle()"),
    (mixed_dtypes, "unit root holds parameters of several dtypes; use one dtype in a unit"),
    (mixed_dtypes_both_trained, "unit root holds parameters of several dtypes; use one dtype in a unit"),
    (
        several_modules_in_a_unit,
        "unit layers.0 packs 128 elements per device and 64 were expected; call fully_shard on",
    ),
    (ignored_parameters, "parameter head.weight is not sharded; let fully_shard manage every parameter"),
]


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=[model.__name__ for model, _ in REFUSED])
def test_refused_by_name(pools, model, message):
    for found in pools(4).run(refusal, model):
        assert found.startswith(message)


def refusal(_, model):
    return told(lambda: OnDemand(model()))


def test_integer_reshard_after_forward_is_refused_at_the_first_gather_that_it_changes(pools):
    for found in pools(4).run(integer_reshard, Case((1, 1, 1, 1), reshard=2)):
        assert "gathers among 2 of 4 devices; use reshard_after_forward True or False" in found


def integer_reshard(rank, case):
    with work.device(case) as (model, _):
        return told(lambda: case.loss(model, rank, 0).backward())


def test_freezing_after_the_engine_was_made_is_refused(pools):
    for found in pools(2).run(freeze_late, PAIR):
        assert "freeze or unfreeze parameters before OnDemand is made" in found


def freeze_late(rank, case):
    with work.device(case) as (model, _):
        model.layers[1].up.weight.requires_grad_(False)
        return told(lambda: case.loss(model, rank, 0).backward())


def test_gradients_are_of_the_masters_kind(pools):
    assert pools(2).run(kinds_of_gradients, PAIR) == [{(True, torch.float32)}] * 2


def kinds_of_gradients(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        return {(isinstance(p.grad, DTensor), p.grad.dtype) for p in model.parameters()}
