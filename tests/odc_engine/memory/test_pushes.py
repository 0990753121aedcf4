"""Slots of a GPU's arena: whatever is pushed, how often and in which dtype, sums have the bits of adding up in fp32, a
writer's own first and then writer after writer."""

import random

import pytest
import shards
import torch

from odc_engine.backends.base import MAIN
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.memory.arena import UnitShape

DEVICES, MINIBATCHES = 3, 4
UNITS = [UnitShape(str(n), 4, n, torch.float32) for n in (37, 64, 0, 1)]
NARROW, WIDE = torch.bfloat16, torch.float32


def drawn(seed):
    """The dtypes of the pushes of each minibatch, device and unit."""
    luck = random.Random(seed)

    def pushes():
        kinds = luck.choice([(NARROW,), (NARROW,), (WIDE,), (NARROW, WIDE)])
        return [luck.choice(kinds) for _ in range(luck.randint(0, 4))]

    return [[[pushes() for _ in UNITS] for _ in range(DEVICES)] for _ in range(MINIBATCHES)]


def gradients(seed, minibatch, device, unit, number, dtype):
    """Of all owners, exact in 16 bits, of all sizes."""
    luck = torch.Generator().manual_seed(hash((seed, minibatch, device, unit, number)) % 2**31)
    n = DEVICES * UNITS[unit].push
    return (torch.randn(n, generator=luck) * 10.0 ** torch.randint(-6, 7, (n,), generator=luck)).bfloat16().to(dtype)


def expected(seed, plan, minibatch, owner, unit):
    n, total = UNITS[unit].push, None
    for device in range(DEVICES):
        own = torch.zeros(n)
        for number, dtype in enumerate(plan[minibatch][device][unit]):
            part = gradients(seed, minibatch, device, unit, number, dtype).float()[owner * n : (owner + 1) * n]
            own = part if number == 0 else own + part
        total = own if total is None else total + own
    return total


def summed(rank, seed):
    """What this device finds in every minibatch."""
    shards.interpreted()
    from odc_engine.kernels.transfers import Launch
    from odc_engine.memory.gpu import GpuArena

    memory = SharedMemory(timeout=30.0)
    arena = GpuArena(memory, UNITS, "slots", launch=Launch(block=16, programs=3))
    memory.view(rank).fill_(0xFF)  # not a number
    memory.meet(MAIN)
    found = []
    for minibatch, plan in enumerate(drawn(seed)):
        for unit, dtypes in enumerate(plan[rank]):
            for number, dtype in enumerate(dtypes):
                arena.push(unit, gradients(seed, minibatch, rank, unit, number, dtype))
        arena.complete()
        memory.meet(MAIN)
        found.append([arena.gradients(unit).tolist() for unit in range(len(UNITS))])
        memory.meet(MAIN)
    memory.close()
    return found


@pytest.mark.skipif(not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt")
@pytest.mark.parametrize("seed", range(3))
def test_sums_have_the_same_bits_however_they_came(pools, seed):
    plan = drawn(seed)
    for owner, found in enumerate(pools(DEVICES).run(summed, seed)):
        for minibatch, sums in enumerate(found):
            for unit, total in enumerate(sums):
                assert total == expected(seed, plan, minibatch, owner, unit).tolist(), (minibatch, unit)
