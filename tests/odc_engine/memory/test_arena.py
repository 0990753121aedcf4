"""The arena's arithmetic, for any unit shapes and number of devices, in memory that threads share; and by interpreted
kernels, in memory that processes share. Arenas over every transport: test_interleavings."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import shards
import torch
from arenas import DTYPES, on_every_device, units
from hypothesis import given
from hypothesis import strategies as st

from odc_engine.backends.base import MAIN
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.doctor import room
from odc_engine.memory.arena import ALIGN, CHUNK, NOTES, Arena, UnitShape
from odc_engine.memory.far import FarArena
from odc_engine.memory.spare import ROOM
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
    values = [0.0, 1.0, 1e8, -1e8]  # whose sum depends on the order

    def work(memory):
        arena = Arena(memory, [UnitShape("unit", 0, 1, torch.float32)], "slots")
        memory.meet(0)
        arena.push(0, torch.full((4,), values[memory.rank]))
        memory.meet(0)
        return arena.gradients(0).item()

    assert on_every_device(4, work) == [0.0] * 4  # 1e8 + 1 is 1e8 in fp32; the other way round gives 1


def test_views_do_not_overlap():
    """Writing everywhere and reading it all again finds what was written. There is room for so many notes."""
    shapes = [UnitShape("a", 3, 5, torch.bfloat16), UnitShape("b", 7, 0, torch.float32)]
    shapes.append(UnitShape("c", 1, 9, torch.float32))

    def work(memory):
        arena = Arena(memory, shapes, "slots")
        arena.notes(0, NOTES)
        with pytest.raises(InputError):
            arena.notes(0, NOTES + 1)
        views = [arena.weights(0, unit) for unit in range(3)]
        views += [arena.slot(0, unit, writer) for unit in range(3) for writer in range(2)]
        views.append(arena.notes(0, 11))
        for i, view in enumerate(views):
            view.fill_(i + 1)
        return [set(view.tolist()) - {i + 1} for i, view in enumerate(views)]

    assert on_every_device(2, work)[0] == [set()] * 10


def test_nodes_that_do_not_divide_devices_are_refused():
    with pytest.raises(InputError):
        Arena(SimpleNamespace(size=4, rank=0), [], "slots", 3)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_it_takes_the_bytes_that_the_memory_estimate_says(devices):
    model = replace(catalog.model("qwen2.5-0.5b"), layers=3, hidden=64, ffn=128, vocab=1000)
    parts = [-(-p // devices) for p in (model.root_parameters, *[model.layer_parameters] * model.layers)]
    shapes = [UnitShape(f"unit {i}", n, n, torch.bfloat16) for i, n in enumerate(parts)]

    def work(memory):
        Arena(memory, shapes, "locked")
        return memory.view(memory.rank).numel()

    estimated = estimate(model, devices, 1000, Recipe("on-demand")).arena
    for taken in on_every_device(devices, work):
        assert 0 <= taken - NOTES - estimated <= 2 * (ALIGN + 6) * len(shapes) + ALIGN


@pytest.mark.parametrize("devices", [2, 16, 64])
@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen3-8b"])
def test_the_doctor_says_what_an_arena_over_a_network_asks_for(name, devices):
    model = catalog.model(name)
    parts = [-(-p // devices) for p in (model.root_parameters, *[model.layer_parameters] * model.layers)]
    told = []

    def allocate(nbytes):
        told.append(nbytes)
        raise StopIteration

    shapes = [UnitShape(f"unit {i}", n, n, torch.float32) for i, n in enumerate(parts)]
    with pytest.raises(StopIteration):
        FarArena(SimpleNamespace(rank=0, size=devices, allocate=allocate), shapes, "slots")
    assert room.arena(name, devices) == pytest.approx(told[0], rel=0.01)
    assert told[0] - 4 * sum(parts) * (1 + devices) < 2 * ROOM + (1 << 23)


# A GPU's arena.

DEVICES, MINIBATCHES = 3, 4
SHAPES = [UnitShape(str(n), g, n, t) for n, g, t in zip((37, 64, 0, 1), (37, 64, 5, 4), DTYPES * 2, strict=True)]
NARROW, WIDE = torch.bfloat16, torch.float32


def drawn(seed):
    """The dtypes of the pushes of each minibatch, device and unit."""
    luck = random.Random(seed)

    def pushes():
        kinds = luck.choice([(NARROW,), (NARROW,), (WIDE,), (NARROW, WIDE)])
        return [luck.choice(kinds) for _ in range(luck.randint(0, 4))]

    return [[[pushes() for _ in SHAPES] for _ in range(DEVICES)] for _ in range(MINIBATCHES)]


def gradients(seed, at, dtype, exact):
    """Of all owners, exact in 16 bits, of all sizes; whole numbers, whose sums are exact, where order is luck."""
    luck = torch.Generator().manual_seed(hash((seed, *at[:4])) % 2**31)
    n = DEVICES * SHAPES[at[2]].push
    if exact:
        return torch.randint(-8, 9, (n,), generator=luck).to(dtype)
    return (torch.randn(n, generator=luck) * 10.0 ** torch.randint(-6, 7, (n,), generator=luck)).bfloat16().to(dtype)


def expected(seed, plan, number, owner, unit, exact):
    """In fp32, a writer's own first and then writer after writer."""
    n, total = SHAPES[unit].push, None
    for device in range(DEVICES):
        own = torch.zeros(n)
        for m, dtype in enumerate(plan[number][device][unit]):
            part = gradients(seed, (number, device, unit, m), dtype, exact).float()[owner * n : (owner + 1) * n]
            own = part if m == 0 else own + part
        total = own if total is None else total + own
    return total.tolist()


def published(number, owner, unit):
    return (torch.arange(SHAPES[unit].gather) + 7 * number + 31 * owner) % 251


def by_kernels(rank, seed, accumulate):
    """What this device gathers wrong, and its sums in every minibatch."""
    shards.interpreted()
    from odc_engine.kernels.transfers import Launch
    from odc_engine.memory.gpu import GpuArena

    memory, exact = SharedMemory(timeout=30.0), accumulate == "locked"
    arena = GpuArena(memory, SHAPES, accumulate, launch=Launch(block=16, programs=3))
    memory.view(rank).fill_(0xFF)  # not a number
    found, wrong = [], []
    for number, plan in enumerate(drawn(seed)):
        for unit in range(len(SHAPES)):
            arena.weights(rank, unit).copy_(published(number, rank, unit))
            arena.clear(unit)
        memory.meet(MAIN)
        for unit, dtypes in enumerate(plan[rank]):
            for dtype in {*dtypes, SHAPES[unit].dtype}:
                out = torch.empty(DEVICES * SHAPES[unit].gather, dtype=dtype)
                arena.gather(unit, out)
                whole = torch.cat([published(number, owner, unit) for owner in range(DEVICES)])
                wrong += [] if torch.equal(out, whole.to(dtype)) else [(number, unit, dtype)]
            for m, dtype in enumerate(dtypes):
                arena.push(unit, gradients(seed, (number, rank, unit, m), dtype, exact))
        arena.complete()
        memory.meet(MAIN)
        found.append([arena.gradients(unit).tolist() for unit in range(len(SHAPES))])
        memory.meet(MAIN)
    memory.close()
    return found, wrong


@pytest.mark.skipif(not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt")
@pytest.mark.parametrize(("seed", "accumulate"), [(0, "slots"), (1, "slots"), (2, "locked")])
def test_kernels_gather_what_was_published_and_sum_to_the_same_bits_however_pushes_came(pools, seed, accumulate):
    plan = drawn(seed)
    for owner, (found, wrong) in enumerate(pools(DEVICES).run(by_kernels, seed, accumulate)):
        assert not wrong
        for number, sums in enumerate(found):
            for unit, total in enumerate(sums):
                assert total == expected(seed, plan, number, owner, unit, accumulate == "locked"), (number, unit)
