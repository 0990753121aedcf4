"""Gradients on demand are those of one process, whatever the model, its units and what devices run of it."""

from copy import deepcopy
from functools import partial

import nets
import pytest
import torch
import work
from torch import nn
from torch.distributed.tensor import DTensor
from work import Case

from odc_engine import OnDemand
from odc_engine.runs.verify import BOUND

UNEVEN = Case((4, 1, 2, 0))
PAIR = Case((2, 1))
TIED = partial(nets.Net, tied=True)

MODELS = {
    "plain": nets.Net,
    "tied embeddings": TIED,
    "recomputed inside": partial(nets.Net, recompute="plain"),
    "recomputed inside, reentrant": partial(nets.Net, recompute="reentrant"),
    "recomputed around": partial(nets.Net, around="plain"),
    "recomputed around, reentrant": partial(nets.Net, around="reentrant"),
    "layers left out": nets.Dropping,
    "frozen": nets.Half,
    "empty shards": nets.Narrow,
}
CASES = {
    f"{name}, {'resharded' if reshard else 'kept'}": UNEVEN.but(model=model, reshard=reshard)
    for name, model in MODELS.items()
    for reshard in (True, False)
}
UNITS = [  # the root may be left with nothing of its own; groups of modules are as accelerate and torchtitan make them
    (),
    ("layers", "embedding"),
    ("layers", "embedding", "head"),
    ("layers.0", "head"),
    (("layers.2.norm", "head"),),
    (("layers.0", "layers.1"),),
    ("layers.0.up", ("layers.0.down", "layers.1.down"), ("layers.1", "layers.2")),
]
CASES |= {f"units {units}": UNEVEN.but(units=units) for units in UNITS}
CASES["tied together"] = UNEVEN.but(model=TIED, units=(("embedding", "head"),))
CASES |= {f"{prefetch} ahead": UNEVEN.but(prefetch=prefetch) for prefetch in (1, 2, 3)}
CASES["ahead of layers left out"] = UNEVEN.but(prefetch=2, model=nets.Dropping)
CASES |= {f"choosy, {how}": UNEVEN.but(model=nets.Choosy, accumulate=how) for how in ("locked", "slots")}


def settled(rank, case, freeze="", clip=0.0):
    """Gradients, and their norm."""
    with work.device(case) as (model, comm):
        if freeze:
            model.get_submodule(freeze).requires_grad_(False)
        work.minibatch(case, rank, model, comm)
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip) if clip else torch.zeros(())
        kinds = {(type(p.grad), p.grad.dtype) for p in model.parameters() if p.grad is not None}
        assert kinds <= {(DTensor, torch.float32)}
        return work.whole_gradients(model), work.whole(norm).item()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_are_those_of_one_process(pools, case):
    expected = work.reference(case)
    for found, _ in pools(4).run(settled, case):
        assert work.error(found, expected) <= BOUND


@pytest.mark.parametrize("frozen", ["layers.1.up", "layers.1", "head"])
def test_what_is_frozen_after_the_engine_was_made_has_no_gradient(pools, frozen):
    """And all others have theirs, whether a part of a unit is frozen or a whole one."""
    alone = PAIR.fresh()
    alone.get_submodule(frozen).requires_grad_(False)
    expected = work.reference(PAIR, model=alone)
    for found, _ in pools(2).run(settled, PAIR, frozen):
        assert work.error(found, expected) <= BOUND


@pytest.mark.parametrize("model", [nets.Net, nets.Narrow, nets.Choosy])
def test_clipping_across_devices_with_unequal_counts(pools, model):
    case = UNEVEN.but(model=model)
    reference = case.fresh().double()
    gradients = work.reference(case, model=reference)
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.05).item()
    for clipped, found in pools(4).run(settled, case, "", 0.05):
        assert found == pytest.approx(norm, rel=1e-5)
        assert work.error(clipped, gradients) <= BOUND


def test_pairs_of_the_devices_each_for_itself(pools):
    """As beside tensor parallelism, or with another model on the others."""
    halves = [Case((4, 1)), Case((0, 0, 2, 0))]
    for rank, (found, _) in enumerate(pools(4).run(settled, UNEVEN.but(part=True))):
        assert work.error(found, work.reference(halves[rank // 2])) <= BOUND


def test_a_minibatch_without_any_microbatch_leaves_weights_alone(pools):
    case = Case((0, 0))
    found = pools(2).run(work.trained, case, 2)[0]
    assert all(torch.equal(found[name], value) for name, value in case.fresh().named_parameters())


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


def test_training_goes_on_from_a_saved_state_as_if_never_stopped(pools):
    case = Case((3, 1), accumulate="slots")
    for resumed, straight in pools(2).run(stopped_and_resumed, case):
        assert all(torch.equal(resumed[name], value) for name, value in straight.items())


def engine_after_engine(rank, case):
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
    comm = OnDemand(model, average=False)
    work.minibatch(case, rank, model, comm)
    found = work.whole_gradients(model)
    comm.close()
    return found


def test_a_model_can_be_given_to_another_engine(pools):
    expected = work.reference(PAIR)
    for found in pools(2).run(engine_after_engine, PAIR):
        assert work.error(found, expected) <= BOUND
