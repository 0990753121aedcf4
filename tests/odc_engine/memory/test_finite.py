"""Which gradients are refused: those with a NaN or an infinity, wherever it is, and no finite ones, however large."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from odc_engine.errors import BadGradient
from odc_engine.memory.finite import Checks

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
of_any = pytest.mark.parametrize("dtype", DTYPES)


class OnGpu(torch.Tensor):
    """One of a CPU that says it is on a GPU, where results are read later."""

    is_cuda = True


def checked(*gradients, later):
    checks = Checks()
    for number, each in enumerate(gradients):
        checks.check(each.as_subclass(OnGpu) if later else each, f"unit {number}", 1, range(3, 4))
    checks.settle()
    checks.settle()  # of the next minibatch


@of_any
@given(later=st.booleans(), data=st.data())
def test_finite_gradients_pass_whatever_their_size(dtype, later, data):
    most = torch.finfo(dtype).max
    values = st.sampled_from([most, -most, 0.0, -0.0, torch.finfo(dtype).smallest_normal, 0.6 * most])
    others = [torch.full((3,), torch.finfo(other).max, dtype=other) for other in DTYPES]
    checked(torch.tensor(data.draw(st.lists(values, max_size=40)), dtype=dtype), *others, later=later)


@of_any
@given(later=st.booleans(), data=st.data())
def test_one_value_that_is_not_finite_is_refused_wherever_it_is(dtype, later, data):
    """Also beside its opposite, among values that are as large as there are, and before another bad one."""
    size, bad = data.draw(st.integers(1, 70)), data.draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]))
    gradient = torch.full((size,), data.draw(st.sampled_from([0.0, torch.finfo(dtype).max])), dtype=dtype)
    for _ in range(2):
        gradient[data.draw(st.integers(0, size - 1))] = bad
        bad = -bad
    with pytest.raises(BadGradient, match=r"unit 1 .*\(device 1, microbatch 3\)$"):
        checked(torch.ones(5), gradient, torch.full((3,), -float("inf")), later=later)
