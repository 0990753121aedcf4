"""The arena's arithmetic, for any unit shapes and number of devices, in memory that threads share."""

from dataclasses import replace

import pytest
import torch
from arenas import DTYPES, on_every_device, units
from hypothesis import given
from hypothesis import strategies as st

from odc_engine.memory.arena import ALIGN, CHUNK, NOTES, Arena, UnitShape
from odcsim import catalog
from odcsim.catalog.estimates.memory import estimate
from odcsim.errors import InputError
from odcsim.recipe import ACCUMULATE, Recipe


@given(st.integers(1, 4), units, st.sampled_from(ACCUMULATE), st.integers(0, 3))
def test_gather_concatenates_and_push_adds(devices, shapes, accumulate, times):
    def work(memory):
        arena = Arena(memory, shapes, accumulate)
        for unit, shape in enumerate(shapes):
            arena.weights(memory.rank, unit).copy_(torch.arange(shape.gather) % 50 + 50 * memory.rank)
            arena.clear(unit)
        memory.meet(0)
        whole = []
        for unit, shape in enumerate(shapes):
            out = torch.full((devices * shape.gather,), -1.0, dtype=shape.dtype)
            arena.gather(unit, out)
            whole.append(out)
            for _ in range(times):
                arena.push(unit, torch.arange(devices * shape.push, dtype=torch.float32) + memory.rank)
        memory.meet(0)
        sums = [arena.gradients(unit).clone() for unit in range(len(shapes))]
        memory.meet(0)
        for unit in range(len(shapes)):
            arena.clear(unit)
        return whole, sums, [arena.gradients(unit).abs().sum().item() for unit in range(len(shapes))]

    for rank, (whole, sums, cleared) in enumerate(on_every_device(devices, work)):
        assert not any(cleared)
        for shape, got, total in zip(shapes, whole, sums, strict=True):
            expected = torch.cat([torch.arange(shape.gather) % 50 + 50 * device for device in range(devices)])
            assert torch.equal(got, expected.to(shape.dtype))
            own = torch.arange(rank * shape.push, (rank + 1) * shape.push, dtype=torch.float32)
            assert torch.equal(total, times * (devices * own + sum(range(devices))))


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_it_takes_the_bytes_that_the_memory_estimate_says(devices):
    model = replace(catalog.model("qwen2.5-0.5b"), layers=3, hidden=64, ffn=128, vocab=1000)
    of_units = [model.root_parameters, *[model.layer_parameters] * model.layers]
    shapes = [
        UnitShape(f"unit {n}", -(-p // devices), -(-p // devices), torch.bfloat16) for n, p in enumerate(of_units)
    ]

    def work(memory):
        Arena(memory, shapes, "locked")
        return memory.view(memory.rank).numel()

    estimated = estimate(model, devices, 1000, Recipe("on-demand")).arena
    for taken in on_every_device(devices, work):
        assert 0 <= taken - NOTES - estimated <= 2 * (ALIGN + 6) * len(shapes) + ALIGN


@pytest.mark.parametrize("accumulate", ACCUMULATE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pushes_of_many_chunks_at_once_lose_nothing(accumulate, dtype):
    """Small whole numbers, whose sums are exact in fp32 (and would not be in bf16) in any order."""
    n = CHUNK // 4 + 17

    def work(memory):
        arena = Arena(memory, [UnitShape("unit", 0, n, torch.float32)], accumulate)
        memory.meet(0)
        for i in range(5):
            arena.push(0, ((torch.arange(3 * n) + i) % 200).to(dtype))
        memory.meet(0)
        return arena.gradients(0)

    every = sum((torch.arange(3 * n) + i) % 200 for i in range(5))
    assert torch.equal(torch.cat(on_every_device(3, work)), (3 * every).float())


def test_slots_are_added_in_the_order_of_devices():
    """Values whose sum depends on the order."""
    values = [0.0, 1.0, 1e8, -1e8]

    def work(memory):
        arena = Arena(memory, [UnitShape("unit", 0, 1, torch.float32)], "slots")
        memory.meet(0)
        arena.push(0, torch.full((4,), values[memory.rank]))
        memory.meet(0)
        return arena.gradients(0).item()

    assert on_every_device(4, work) == [0.0] * 4  # 1e8 + 1 is 1e8 in fp32; the other way round gives 1


def test_views_do_not_overlap():
    """Writing everywhere and reading it all again finds what was written."""
    shapes = [
        UnitShape("a", 3, 5, torch.bfloat16),
        UnitShape("b", 7, 0, torch.float32),
        UnitShape("c", 1, 9, DTYPES[0]),
    ]

    def work(memory):
        arena = Arena(memory, shapes, "slots")
        views = [arena.weights(0, unit) for unit in range(3)]
        views += [arena.slot(0, unit, writer) for unit in range(3) for writer in range(2)]
        views.append(arena.notes(0, 11))
        for i, view in enumerate(views):
            view.fill_(i + 1)
        return [set(view.tolist()) - {i + 1} for i, view in enumerate(views)]

    assert on_every_device(2, work)[0] == [set()] * 10


def test_too_many_parameters_are_refused():
    def work(memory):
        arena = Arena(memory, [], "locked")
        arena.notes(0, NOTES)
        with pytest.raises(InputError, match=f"{NOTES + 1} parameters; at most {NOTES} are supported"):
            arena.notes(0, NOTES + 1)
        return True

    assert on_every_device(1, work) == [True]
