"""What torch is told of the SMs that matrix products shall be planned for."""

import pytest
import torch

from odc_engine.places import products


@pytest.fixture(autouse=True)
def as_before():
    before = torch._C._get_sm_carveout_experimental()
    yield
    torch._C._set_sm_carveout_experimental(before)


@pytest.mark.parametrize(("sms", "left"), [(32, 100), (16, 116), (132, None)])
def test_products_are_planned_for_a_groups_sms(sms, left):
    assert products.plan_for(sms, 132)
    assert torch._C._get_sm_carveout_experimental() == left


def test_a_torch_that_cannot_say_so_is_left_alone(monkeypatch):
    monkeypatch.delattr(torch._C, "_set_sm_carveout_experimental")
    assert not products.plan_for(32, 132)
