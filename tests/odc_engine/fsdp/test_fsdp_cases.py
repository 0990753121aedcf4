"""What goes silently wrong under FSDP2 when communication is replaced: each case a model, or a habit, of its own."""

from copy import deepcopy
from functools import partial

import nets
import pytest
import torch
import work
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from work import Case

from odc_engine import OnDemand
from odc_engine.runs.verify import BOUND

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


def head_with_norm(model):
    fully_shard([model.layers[2].norm, model.head])


def layers_together(model):
    fully_shard([model.layers[0], model.layers[1]])


def tied_together(model):
    model.head.weight = model.embedding.weight
    fully_shard([model.embedding, model.head])


def nested(model):
    fully_shard(model.layers[0].up)
    fully_shard([model.layers[0].down, model.layers[1].down])
    fully_shard([model.layers[1], model.layers[2]])


GROUPED = [head_with_norm, layers_together, tied_together, nested]


@pytest.mark.parametrize("group", GROUPED, ids=[group.__name__ for group in GROUPED])
def test_units_are_fsdps_groups_of_modules(pools, group):
    """As accelerate and torchtitan group them, and as tied parameters have to be."""
    expected = work.reference(UNEVEN.but(model=partial(nets.Net, tied=group is tied_together)))
    for found in pools(4).run(grouped, UNEVEN, group):
        assert work.error(found, expected) <= BOUND


def grouped(rank, case, group):
    model = case.fresh()
    group(model)
    comm = OnDemand(fully_shard(model), average=False)
    work.minibatch(case, rank, model, comm)
    found = work.whole_gradients(model)
    comm.close()
    return found


def test_a_model_on_a_part_of_all_devices(pools):
    """As beside tensor parallelism, or with another model on the others: pairs of four devices, each for itself."""
    halves = [UNEVEN.but(counts=(4, 1)), Case((0, 0, 2, 0))]
    for rank, found in enumerate(pools(4).run(on_a_submesh, UNEVEN)):
        assert work.error(found, work.reference(halves[rank // 2])) <= BOUND


def on_a_submesh(rank, case):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("part", "shard"))["shard"]
    model = case.fresh()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    comm = OnDemand(fully_shard(model, mesh=mesh), average=False)
    work.minibatch(case, rank, model, comm)
    found = work.whole_gradients(model)
    comm.close()
    return found


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


@pytest.mark.parametrize("frozen", ["layers.1.up", "layers.1", "head"])
def test_what_is_frozen_after_the_engine_was_made_has_no_gradient(pools, frozen):
    """And all others have theirs, whether a part of a unit is frozen or a whole one."""
    alone = PAIR.fresh()
    alone.get_submodule(frozen).requires_grad_(False)
    expected = work.reference(PAIR, model=alone)
    for found in pools(2).run(freeze_late, PAIR, frozen):
        assert work.error(found, expected) <= BOUND


def freeze_late(rank, case, frozen):
    with work.device(case) as (model, comm):
        model.get_submodule(frozen).requires_grad_(False)
        work.minibatch(case, rank, model, comm)
        return work.whole_gradients(model)


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
    comm = OnDemand(model, average=False)
    work.minibatch(case, rank, model, comm)
    found = work.whole_gradients(model)
    comm.close()
    return found


def test_gradients_are_of_the_masters_kind(pools):
    assert pools(2).run(kinds_of_gradients, PAIR) == [{(True, torch.float32)}] * 2


def kinds_of_gradients(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        return {(isinstance(p.grad, DTensor), p.grad.dtype) for p in model.parameters()}
