"""What a microbatch's steps keep for later ones."""

import weakref

import torch

from odc_engine import Packed
from odc_engine.devices.equipment import Pass


def test_nothing_keeps_the_activation_that_the_head_has_read():
    """A gradient of its size comes next: with both, a device would need room for one more."""
    batch = Packed(torch.zeros(2), torch.zeros(2), torch.ones(2), (2,))
    there = Pass(batch, None, activation=torch.ones(3))
    watched = weakref.ref(there.activation)
    assert there.last_activation().tolist() == [1.0, 1.0, 1.0]
    assert watched() is None
