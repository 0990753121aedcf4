"""The arena's arithmetic, for any unit shapes, devices and nodes, in memory that threads share; and by interpreted
kernels, in memory that processes share. Arenas over every transport: test_interleavings."""

import random
import threading
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
from odc_engine.errors import PeerLost
from odc_engine.memory import arena as memory_arena
from odc_engine.memory.arena import ALIGN, CHUNK, NOTES, Arena, UnitShape
from odc_engine.memory.far import FarArena
from odc_engine.memory.spare import ROOM
from odcsim import catalog
from odcsim.catalog.estimates.memory import estimate
from odcsim.errors import InputError
from odcsim.recipe import ACCUMULATE, Recipe

NODES = [(1, None), (2, None), (3, None), (4, None), (2, 1), (4, 2), (4, 1), (6, 2), (6, 3)]  # devices, and of a node


def published(number, owner, unit, size):
    return (torch.arange(size) + 50 * owner + 7 * unit + 3 * number) % 251  # exact in bf16, too


def pushed(number, device, unit, size):
    return (torch.arange(size) + 7 * device + 3 * unit + number) % 50 - 25.0


@given(st.sampled_from(NODES), units, st.sampled_from(ACCUMULATE), st.booleans())
def test_what_is_gathered_was_published_and_sums_are_of_all_that_was_pushed(nodes, shapes, accumulate, ahead):
    devices, node = nodes

    def work(memory):
        arena, wrong, rank = Arena(memory, shapes, accumulate, node), [], memory.rank
        for number in range(3):
            for unit, shape in enumerate(shapes):
                arena.weights(rank, unit).copy_(published(number, rank, unit, shape.gather))
                if arena.nodes == 1:
                    arena.clear(unit)
            memory.meet(0)
            if ahead and arena.nodes > 1:
                arena.begin()
                memory.meet(0)
                for unit in range(len(shapes)):
                    arena.bring(unit)
            elif arena.nodes > 1:
                arena.fetch()
                memory.meet(0)
            for unit, shape in enumerate(shapes):
                out = torch.full((devices * shape.gather,), -1.0, dtype=shape.dtype)
                arena.gather(unit, out)
                every = torch.cat([published(number, owner, unit, shape.gather) for owner in range(devices)])
                wrong += [] if torch.equal(out, every.to(shape.dtype)) else [f"weights {unit} of {number}"]
                for _ in range(rank % 3):
                    arena.push(unit, pushed(number, rank, unit, devices * shape.push))
            arena.complete()
            memory.meet(0)
            if arena.offer_sums():
                arena.meet()
            arena.sum_nodes()
            for unit, shape in enumerate(shapes):
                total = sum((d % 3) * pushed(number, d, unit, devices * shape.push) for d in range(devices))
                own = total[rank * shape.push : (rank + 1) * shape.push]
                wrong += [] if torch.equal(arena.gradients(unit), own) else [f"sums {unit} of {number}"]
            memory.meet(0)
        return wrong

    assert on_every_device(devices, work) == [[]] * devices


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
    shapes = [UnitShape(str(n), *n, torch.float32) for n in ((7, 0), (1, 9))]
    shapes.insert(0, UnitShape("narrow", 3, 5, torch.bfloat16))

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


# Who gathers waits until its node has fetched all of the unit.


def node_of_three(timeout=10.0):
    """Arenas of ranks 3 to 5, whose counterparts are 0 to 2."""
    shapes = [UnitShape("one", 3, 3, torch.float32), UnitShape("two", 2, 2, torch.float32)]
    return on_every_device(6, lambda memory: Arena(memory, shapes, "slots", 3), timeout)[3:]


@pytest.mark.parametrize("seed", range(15))
def test_a_gather_waits_until_all_of_the_node_have_fetched_the_unit(seed, monkeypatch):
    """Publication after publication: what was fetched before counts no more."""
    monkeypatch.setattr(memory_arena, "AT_ONCE", 0)
    drawn, node = random.Random(seed), node_of_three()
    out = [torch.empty(6 * shape.gather) for shape in node[0].units]
    node[0].gather(0, out[0])  # nothing is fetched ahead
    for _ in range(3):
        for one in node:
            one.begin()
        waiter, unit, over = drawn.choice(node), drawn.randrange(2), []
        thread = threading.Thread(target=lambda: (waiter.gather(unit, out[unit]), over.append(1)), daemon=True)  # noqa: B023
        thread.start()
        for n, one in enumerate(drawn.sample(node, 3)):
            one.bring(1 - unit)
            thread.join(3e-3)
            assert not over, n
            one.bring(unit)
        thread.join(10)
        assert over


def test_who_fetches_nothing_is_named():
    first, _, third = node_of_three(timeout=0.1)
    first.begin()
    first.bring(0)
    third.begin()
    third.bring(0)
    with pytest.raises(PeerLost) as lost:
        first.gather(0, torch.empty(18))
    assert lost.value.devices == [4]


# Bytes that it takes.


def shapes_of(model, devices, dtype):
    parts = [-(-p // devices) for p in (model.root_parameters, *[model.layer_parameters] * model.layers)]
    return [UnitShape(f"unit {i}", n, n, dtype) for i, n in enumerate(parts)]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_it_takes_the_bytes_that_the_memory_estimate_says(devices):
    model = replace(catalog.model("qwen2.5-0.5b"), layers=3, hidden=64, ffn=128, vocab=1000)
    shapes = shapes_of(model, devices, torch.bfloat16)

    def work(memory):
        Arena(memory, shapes, "locked")
        return memory.view(memory.rank).numel()

    estimated = estimate(model, devices, 1000, Recipe("on-demand")).arena
    for taken in on_every_device(devices, work):
        assert 0 <= taken - NOTES - estimated <= 2 * (ALIGN + 6) * len(shapes) + ALIGN


@pytest.mark.parametrize("devices", [2, 16, 64])
@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen3-8b"])
def test_the_doctor_says_what_an_arena_over_a_network_asks_for(name, devices):
    shapes, told = shapes_of(catalog.model(name), devices, torch.float32), []

    def allocate(nbytes):
        told.append(nbytes)
        raise StopIteration

    with pytest.raises(StopIteration):
        FarArena(SimpleNamespace(rank=0, size=devices, allocate=allocate), shapes, "slots")
    assert room.arena(name, devices) == pytest.approx(told[0], rel=0.01)
    assert told[0] - 4 * sum(shape.gather for shape in shapes) * (1 + devices) < 2 * ROOM + (1 << 23)


# A GPU's arena.

DEVICES, MINIBATCHES = 3, 4
SHAPES = [UnitShape(str(n), g, n, t) for n, g, t in zip((37, 64, 0, 1), (37, 64, 5, 4), DTYPES * 2, strict=True)]
NARROW, WIDE = torch.bfloat16, torch.float32


def drawn(seed):
    """The dtypes of the pushes of each minibatch, device and unit."""
    luck = random.Random(seed)
    kinds = [[], [NARROW], [NARROW, NARROW, NARROW], [WIDE, WIDE], [NARROW, WIDE], [WIDE, NARROW, NARROW]]
    return [[[luck.choice(kinds) for _ in SHAPES] for _ in range(DEVICES)] for _ in range(MINIBATCHES)]


def gradients(*at):
    """Of all owners, exact in 16 bits, of all sizes. `at`: the seed, minibatch, device, unit and number of a push."""
    luck, n = torch.Generator().manual_seed(hash(at) % 2**31), DEVICES * SHAPES[at[3]].push
    return (torch.randn(n, generator=luck) * 10.0 ** torch.randint(-6, 7, (n,), generator=luck)).bfloat16()


def expected(seed, plan, number, owner, unit):
    """In fp32, a writer's own first and then writer after writer."""
    n, total = SHAPES[unit].push, None
    for device in range(DEVICES):
        parts = [gradients(seed, number, device, unit, m).float() for m in range(len(plan[device][unit]))]
        own = sum(parts[1:], parts[0])[owner * n : (owner + 1) * n] if parts else torch.zeros(n)
        total = own if total is None else total + own
    return total.tolist()


def by_kernels(rank, seed):
    """What this device gathers wrong, and its sums in every minibatch."""
    shards.interpreted()
    from odc_engine.kernels.transfers import Launch
    from odc_engine.memory.gpu import GpuArena

    memory = SharedMemory(timeout=30.0)
    arena = type("Small", (GpuArena,), {"launch": Launch(block=16, programs=3)})(memory, SHAPES, "slots")
    memory.view(rank).fill_(0xFF)  # not a number
    found, wrong = [], []
    for number, plan in enumerate(drawn(seed)):
        for unit, shape in enumerate(SHAPES):
            arena.weights(rank, unit).copy_(published(number, rank, unit, shape.gather))
            arena.clear(unit)
        memory.meet(MAIN)
        for unit, dtypes in enumerate(plan[rank]):
            for dtype in {*dtypes, SHAPES[unit].dtype}:
                out = torch.empty(DEVICES * SHAPES[unit].gather, dtype=dtype)
                arena.gather(unit, out)
                whole = torch.cat([published(number, owner, unit, SHAPES[unit].gather) for owner in range(DEVICES)])
                wrong += [] if torch.equal(out, whole.to(dtype)) else [(number, unit, dtype)]
            for m, dtype in enumerate(dtypes):
                arena.push(unit, gradients(seed, number, rank, unit, m).to(dtype))
        arena.complete()
        memory.meet(MAIN)
        found.append([arena.gradients(unit).tolist() for unit in range(len(SHAPES))])
        memory.meet(MAIN)
    memory.close()
    return found, wrong


@pytest.mark.skipif(not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt")
@pytest.mark.parametrize("seed", [0, 1])
def test_kernels_gather_what_was_published_and_sum_to_the_same_bits_however_pushes_came(pools, seed):
    plan = drawn(seed)
    for owner, (found, wrong) in enumerate(pools(DEVICES).run(by_kernels, seed)):
        assert not wrong
        for number, sums in enumerate(found):
            for unit, total in enumerate(sums):
                assert total == expected(seed, plan[number], number, owner, unit), (number, unit)
