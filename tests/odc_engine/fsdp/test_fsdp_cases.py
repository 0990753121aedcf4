"""Gradients on demand are those of one process, whatever the model, its units and what devices run of it."""

from functools import partial

import nets
import pytest
import torch
import work
from torch import nn
from torch.distributed.tensor import DTensor
from work import Case

from odc_engine.runs.verify import BOUND

UNEVEN = Case((4, 1, 2, 0))
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


def settled(rank, case, clip=0.0):
    """Gradients, and their norm."""
    with work.device(case) as (model, comm):
        work.minibatch(case, rank, model, comm)
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip) if clip else torch.zeros(())
        kinds = {(type(p.grad), p.grad.dtype) for p in model.parameters() if p.grad is not None}
        assert kinds <= {(DTensor, torch.float32)}
        return work.whole_gradients(model), work.whole(norm).item()


@pytest.mark.by_default(14)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_are_those_of_one_process(pools, case):
    expected = work.reference(case)
    for found, _ in pools(4).run(settled, case):
        assert work.error(found, expected) <= BOUND


@pytest.mark.parametrize("model", [nets.Net, nets.Narrow, nets.Choosy])
def test_clipping_across_devices_with_unequal_counts(pools, model):
    case = UNEVEN.but(model=model)
    reference = case.fresh().double()
    gradients = work.reference(case, model=reference)
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.05).item()
    for clipped, found in pools(4).run(settled, case, 0.05):
        assert found == pytest.approx(norm, rel=1e-5)
        assert work.error(clipped, gradients) <= BOUND


def test_pairs_of_the_devices_each_for_itself(pools):
    """As beside tensor parallelism, or with another model on the others."""
    halves = [Case((4, 1)), Case((0, 0, 2, 0))]
    for rank, (found, _) in enumerate(pools(4).run(settled, UNEVEN.but(part=True))):
        assert work.error(found, work.reference(halves[rank // 2])) <= BOUND
