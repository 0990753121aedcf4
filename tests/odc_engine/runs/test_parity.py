"""Gradients and training through the engine, held against one process in fp64 and against each other."""

import nets
import pytest
import torch
import work
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import MixedPrecisionPolicy
from work import Case

from odc_engine.fsdp.before_213 import SETTER
from odc_engine.packed import synthetic
from odc_engine.runs.verify import BOUND
from odcsim.schedule import Schedule

STEPS = 12
UNEVEN = (4, 1, 2, 0)
EVEN = Case((2, 2, 2))
SYNCS = [Case(UNEVEN), Case(UNEVEN, accumulate="slots"), EVEN.but(accumulate="slots")]
SYNCS += [EVEN.but(sync=s, accumulate=how) for s in ("collective", "deferred") for how in ("locked", "slots")]
SYNCS += [EVEN.but(sync=sync, backend="torch") for sync in ("collective", "deferred")]
# Parameters that some microbatches use, and units that no gradient reaches in some; with and without the setter by
# which FSDP2 packs zeros for them. Where transfers meet, others wait for a device to reduce what it does not use.
MODELS = [(model, hides) for model in (nets.Choosy, nets.Passing) for hides in ("", SETTER)]
CASES = [case.but(model=model, hides=hides) for case in SYNCS for model, hides in MODELS]
CASES += [Case((3, 1, 2, 2)[:devices], accumulate=how) for devices in (1, 2, 3, 4) for how in ("locked", "slots")]
CASES += [Case((2,), sync=sync, backend=backend) for sync in ("collective", "deferred") for backend in ("shm", "torch")]


def label(case: Case) -> str:
    counts = "-".join(map(str, case.counts))
    return f"{case.model.__name__}-{case.sync}-{case.backend}-{case.accumulate}-{counts}{'-older' * bool(case.hides)}"


def errors(pools, case: Case) -> list[float]:
    """Of every device: all of them see the same whole gradients, and None where nobody uses a parameter."""
    expected = work.reference(case)
    return [work.error(found, expected) for found in pools(len(case.counts)).run(work.gradients, case)]


@pytest.mark.by_default(20)
@pytest.mark.parametrize("case", SYNCS + CASES, ids=label)
def test_gradients_equal_one_process(pools, case):
    assert max(errors(pools, case)) <= BOUND


DRAWN = st.builds(
    Case,
    st.lists(st.integers(0, 4), min_size=2, max_size=4).filter(any).map(tuple),
    model=st.sampled_from([nets.Net, nets.Choosy, nets.Dropping, nets.Half, nets.Narrow]),
    accumulate=st.sampled_from(["locked", "slots"]),
    reshard=st.booleans(),
    units=st.sampled_from([("layers",), (), ("layers", "embedding")]),
    prefetch=st.integers(0, 2),
    trail=st.integers(1, 3),
    hides=st.sampled_from(["", SETTER]),
)


@settings(max_examples=15)
@given(DRAWN)
def test_gradients_of_drawn_cases(pools, case):
    assert max(errors(pools, case)) <= BOUND


# One rounding to bf16 is wrong by 2^-9 at most. The bound is what the largest value gathers in sixteen of them.
BF16_BOUND = 16 * 2**-9


@pytest.mark.parametrize("reduce", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("accumulate", ["locked", "slots"])
@pytest.mark.parametrize("counts", [UNEVEN, (1, 1)])
def test_bf16_compute_with_fp32_masters(pools, reduce, accumulate, counts):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    case = Case(counts, policy=policy, accumulate=accumulate)
    found = pools(len(counts)).run(work.gradients, case)[0]
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    assert work.error(found, summed_in_fp32(case)) <= BOUND
    assert 1e-4 < work.error(found, work.reference(case)) <= BF16_BOUND


def summed_in_fp32(case: Case) -> dict:
    """One process that computes each microbatch in bf16, whose gradients are added up in fp32."""
    total: dict = {}
    for rank, count in enumerate(case.counts):
        for m in range(count):
            model = case.fresh().bfloat16()
            case.loss(model, rank, m).backward()
            for name, parameter in model.named_parameters():
                total[name] = total.get(name, 0) + parameter.grad.float()
    return total


def test_slots_give_the_same_bits_in_every_run(pools):
    case = Case((3, 2, 4), model=nets.Choosy, accumulate="slots")
    first, second = (pools(3).run(work.trained, case, 3)[0] for _ in range(2))
    assert all(torch.equal(first[name], value) for name, value in second.items())
    locked = pools(3).run(work.trained, case.but(accumulate="locked"), 3)[0]
    assert work.error(locked, first) <= 1e-4


TRAINED = [EVEN, *(EVEN.but(sync=sync) for sync in ("collective", "deferred"))]
TRAINED += [EVEN.but(accumulate="slots", reshard=False, prefetch=2), EVEN.but(sync="deferred", backend="torch")]


@pytest.mark.parametrize("case", TRAINED, ids=label)
def test_training_equals_training_over_collectives(pools, case, collective_weights):
    found = pools(3).run(work.trained, case.but(model=nets.Choosy), STEPS)[0]
    assert work.error(found, collective_weights) <= 1e-4


@pytest.fixture(scope="module")
def collective_weights(pools):
    rival = EVEN.but(model=nets.Choosy, sync="collective", backend="torch")
    found = pools(3).run(work.trained, rival, STEPS)[0]
    started = dict(rival.fresh().named_parameters())
    assert torch.equal(found["layers.0.never"], started["layers.0.never"])  # AdamW decays what has a gradient
    assert work.error(found, started) > 0.1
    return found


PACKINGS = [
    (((0, 1, 2, 3, 4, 5),), (), ()),
    (((0, 1), (2,)), ((3,),), ((4, 5),)),
    (((5,),), ((4, 3, 2),), ((1,), (0,))),
    ((), ((3, 1, 5), (0,)), ((2, 4),)),
]


@pytest.mark.parametrize("normalise", ["token-mean", "sample-mean"])
def test_gradients_do_not_depend_on_packing(pools, normalise):
    """The same samples on other devices, in other microbatches, in another order."""
    found = [pools(3).run(packed_gradients, devices, normalise)[0] for devices in PACKINGS]
    for other in found[1:]:
        assert work.error(other, found[0]) <= BOUND


def packed_gradients(rank, devices, normalise):
    schedule = Schedule.of((9, 3, 14, 2, 6, 11), devices, loss=(4, 3, 7, 1, 0, 11))

    def loss(model, rank, microbatch, _):
        return model(synthetic(schedule, devices[rank][microbatch], 256, 0, normalise))

    return work.gradients(rank, Case(schedule.microbatches, model=nets.nano, loss=loss))
