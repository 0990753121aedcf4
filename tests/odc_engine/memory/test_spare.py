"""What an arena takes beside weights and gradients for what a network carries, and what the doctor says of it."""

from types import SimpleNamespace

import pytest
import torch

from odc_engine.doctor import room
from odc_engine.memory.arena import UnitShape
from odc_engine.memory.far import FarArena
from odc_engine.memory.spare import ROOM
from odcsim import catalog


def asked(shapes, devices):
    """Bytes that an arena asks its memory for."""
    told = []

    def allocate(nbytes):
        told.append(nbytes)
        raise StopIteration

    with pytest.raises(StopIteration):
        FarArena(SimpleNamespace(rank=0, size=devices, allocate=allocate), shapes, "slots")
    return told[0]


@pytest.mark.parametrize("devices", [2, 16, 64])
@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen3-8b"])
def test_the_doctor_says_what_an_arena_asks_for(name, devices):
    model = catalog.model(name)
    of_units = [model.root_parameters, *[model.layer_parameters] * model.layers]
    parts = [-(-parameters // devices) for parameters in of_units]
    shapes = [UnitShape(f"unit {i}", n, n, torch.float32) for i, n in enumerate(parts)]
    nbytes = asked(shapes, devices)
    assert room.arena(name, devices) == pytest.approx(nbytes, rel=0.01)
    assert nbytes - 4 * sum(parts) * (1 + devices) < 2 * ROOM + (1 << 23)
