"""What the doctor says that a model needs of each device's memory, held to the engine's own arenas."""

from types import SimpleNamespace

import pytest
import torch

from odc_engine.doctor import room
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena
from odcsim import catalog

NODE = 8


def asked(kind, name, devices, accumulate):
    """Bytes that an arena of a model's units asks its memory for."""
    model, told = catalog.model(name), []

    def allocate(nbytes):
        told.append(nbytes)
        raise StopIteration

    parts = [-(-each // devices) for each in (model.root_parameters, *[model.layer_parameters] * model.layers)]
    shapes = [UnitShape(f"unit {i}", n, n, torch.float32) for i, n in enumerate(parts)]
    with pytest.raises(StopIteration):
        kind(SimpleNamespace(rank=0, size=devices, allocate=allocate, why_not_add=""), shapes, accumulate)
    return told[0]


def lines(name, devices, gpus=0, each=0):
    return {finding.name: finding for finding in room.examine(name, devices, gpus, each)}


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen3-8b"])
def test_each_way_is_the_arena_that_the_engine_asks_for(name):
    model = catalog.model(name)
    assert room.slots(model, 16) == pytest.approx(asked(FarArena, name, 16, "slots"), rel=0.01)
    assert room.locked(model, NODE) == pytest.approx(asked(Arena, name, NODE, "locked"), rel=0.01)


def test_a_model_is_told_of_without_a_gpu_and_without_a_variable():
    found = lines("qwen3-8b", 16)
    assert set(found) == {"locked", "slots", "hybrid"}
    assert "an arena of 35.3 GB" in found["slots"].found
    assert "a mesh of 2 x 8: an arena of 8.2 GB" in found["hybrid"].found
    assert all(finding.ok for finding in found.values())


def test_it_is_held_against_a_gpu_s_memory():
    found = lines("qwen3-32b", 16, gpus=NODE, each=85_000_000_000)
    assert {name: finding.ok for name, finding in found.items()} == {"slots": False, "hybrid": False}
    assert "more than a GPU's 85.0 GB" in found["slots"].found
    assert found["slots"].advice
    fits = lines("qwen3-8b", 16, gpus=NODE, each=85_000_000_000)
    assert all("of a GPU's 85.0 GB to microbatches" in finding.found for finding in fits.values())


def test_one_machine_has_no_hybrid_and_several_no_common_sum():
    assert set(lines("nano", 8, gpus=8)) == {"locked", "slots"}
    assert set(lines("nano", 16, gpus=8)) == {"slots", "hybrid"}
    assert set(lines("nano", 12, gpus=8)) == {"slots"}  # no mesh of whole machines
