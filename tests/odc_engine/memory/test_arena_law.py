"""Arenas of drawn units over nodes, on threads: what is gathered is what was published, and sums are those of all that
was pushed, whichever nodes hold them. And who waits for its node waits until all of it has come."""

import random
import threading
from types import SimpleNamespace

import pytest
import torch
from arenas import on_every_device

from odc_engine.errors import PeerLost
from odc_engine.memory import brought
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.brought import Brought

SHAPES = [(2, 1), (4, 2), (4, 1), (6, 2), (6, 3), (3, None)]


def published(number, owner, unit, size):
    return torch.arange(size) + 100.0 * owner + 1000 * unit + 10_000 * number


def pushed(number, device, unit, size):
    return (torch.arange(size) + 7 * device + 3 * unit + number) % 50 - 25.0


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("accumulate", ["slots", "locked"])
@pytest.mark.parametrize("seed", range(6))
def test_nodes_gather_what_others_published_and_sum_what_all_pushed(seed, accumulate, ahead):
    drawn = random.Random(seed)
    devices, node = SHAPES[seed]
    units = [UnitShape(str(n), drawn.randrange(1, 70), drawn.randrange(70), torch.float32) for n in range(3)]

    def work(memory):
        arena, wrong, rank = Arena(memory, units, accumulate, node), [], memory.rank
        for number in range(3):
            for unit, shape in enumerate(units):
                arena.weights(rank, unit).copy_(published(number, rank, unit, shape.gather))
                if arena.nodes == 1:
                    arena.clear(unit)
            memory.meet(0)
            if ahead and arena.nodes > 1:
                arena.begin()
                memory.meet(0)
                for unit in range(3):
                    arena.bring(unit)
            elif arena.nodes > 1:
                arena.fetch()
                memory.meet(0)
            for unit, shape in enumerate(units):
                out = torch.full((devices * shape.gather,), -1.0)
                arena.gather(unit, out)
                every = [published(number, owner, unit, shape.gather) for owner in range(devices)]
                wrong += [] if torch.equal(out, torch.cat(every)) else [f"weights {unit} of {number}"]
                for _ in range(rank % 3):
                    arena.push(unit, pushed(number, rank, unit, devices * shape.push))
            arena.complete()
            memory.meet(0)
            arena.offer_sums()
            arena.sum_nodes()
            for unit, shape in enumerate(units):
                total = sum((d % 3) * pushed(number, d, unit, devices * shape.push) for d in range(devices))
                own = total[rank * shape.push : (rank + 1) * shape.push]
                wrong += [] if torch.equal(arena.gradients(unit), own) else [f"sums {unit} of {number}"]
            memory.meet(0)
        return wrong

    assert on_every_device(devices, work) == [[]] * devices


@pytest.mark.parametrize("seed", range(15))
def test_a_unit_is_waited_for_until_all_of_the_node_have_told(seed, monkeypatch):
    """Publication after publication: what was told before counts no more."""
    monkeypatch.setattr(brought, "AT_ONCE", 0)
    drawn, ranks = random.Random(seed), 3
    memories = [SimpleNamespace(rank=4 + n, timeout=10.0, check=lambda: None, stopped=list) for n in range(ranks)]
    rows = [torch.ones(2, ranks, dtype=torch.int32) for _ in range(ranks)]
    every = [Brought(memory, rows, 4) for memory in memories]
    every[0].wait_for(0)  # nothing is fetched ahead
    for _ in range(3):
        for one in every:
            one.begin()
        waiter, unit, over = drawn.randrange(ranks), drawn.randrange(2), []
        thread = threading.Thread(target=lambda: (every[waiter].wait_for(unit), over.append(1)), daemon=True)  # noqa: B023
        thread.start()
        for n, one in enumerate(drawn.sample(every, ranks)):
            one.tell(1 - unit)
            thread.join(3e-3)
            assert not over, n
            one.tell(unit)
        thread.join(10)
        assert over


def test_who_does_not_tell_is_named():
    silent = lambda devices, what: PeerLost(devices, what)  # noqa: E731
    memory = SimpleNamespace(rank=4, timeout=0.01, check=lambda: None, stopped=list, silent=silent)
    rows = [torch.zeros(1, 3, dtype=torch.int32) for _ in range(3)]
    one = Brought(memory, rows, 4)
    one.begin()
    one.tell(0)
    rows[0][0, 2] = 1
    with pytest.raises(PeerLost) as lost:
        one.wait_for(0)
    assert lost.value.devices == [5]
