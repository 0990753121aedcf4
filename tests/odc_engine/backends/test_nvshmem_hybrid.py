"""Hybrid sharding where kernels and a library move the bytes: gathers and pushes by addresses inside a node, and what
goes between nodes crosses the network once."""

import itertools
from types import SimpleNamespace

import nets
import pytest
import shards
import torch
import work
from fake_nvshmem import FakeNvshmem
from work import Case

from odc_engine.backends.base import MAIN
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.fsdp import on_demand as fsdp
from odc_engine.memory import spare
from odc_engine.memory.arena import UnitShape
from odc_engine.memory.far import FarArena
from odc_engine.places.place import Processor
from odc_engine.places.streams import StreamLane
from odc_engine.runs.verify import BOUND

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)
HYBRID = Case((2, 1, 1, 0), model=nets.Choosy, per_node=2)
OVER_NETWORK = HYBRID.but(backend="nvshmem", accumulate="slots", machines=(2, 2))
EVEN = OVER_NETWORK.but(counts=(1, 1, 1, 1))


def by_kernels(rank, case, call, *args):
    """`call` on a device whose near bytes are moved by interpreted kernels, each done where it is given."""
    shards.interpreted()
    from odc_engine.memory.gpu import FarGpuArena, GpuArena

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp, "arena_on", FarGpuArena if case.backend == "nvshmem" else GpuArena)
        patch.setattr(Processor, "lane", lambda place, _: StreamLane(place.device))
        return call(rank, case, *args)


@needs_triton
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(HYBRID, marks=pytest.mark.slow),
        pytest.param(HYBRID.but(per_node=1, accumulate="slots"), marks=pytest.mark.slow),
        OVER_NETWORK.but(accumulate="locked", model=nets.Narrow),
        pytest.param(OVER_NETWORK, marks=pytest.mark.slow),
        OVER_NETWORK.but(accumulate="locked", model=nets.Narrow, far="hierarchical"),
        pytest.param(HYBRID.but(accumulate="slots", far="hierarchical"), marks=pytest.mark.slow),
    ],
    ids=lambda c: f"{c.backend}-{c.accumulate}-{c.per_node}-{c.far}",
)
def test_kernels_have_the_gradients_of_one_process(pools, case):
    """Atomic sums, too: nothing is pushed beyond the node. `shm` stands for GPUs of a machine (cuda_ipc)."""
    expected = work.reference(case)
    found = pools(4).run(by_kernels, case, work.gradients)
    assert max(work.error(gradients, expected) for gradients in found) <= BOUND


@needs_triton
def test_kernels_train_to_the_bits_of_shared_memory(pools):
    """Over several minibatches: what one left in a slot is not in the next."""
    case = HYBRID.but(accumulate="slots", model=nets.Narrow)
    found = pools(4).run(by_kernels, case, work.trained, 2)
    expected = pools(4).run(work.trained, case, 2)[0]
    assert all(torch.equal(weights[name], value) for weights in found for name, value in expected.items())


@pytest.mark.parametrize(
    "case",
    [
        OVER_NETWORK,
        pytest.param(EVEN.but(sync="collective"), marks=pytest.mark.slow),
        pytest.param(EVEN.but(machines=(4,), sync="deferred"), marks=pytest.mark.slow),
    ],
    ids=lambda c: f"{c.sync}-{len(c.machines)}",
)
def test_gradients_equal_one_process(pools, case):
    expected = work.reference(case)
    found = pools(4).run(work.gradients, case)
    assert max(work.error(gradients, expected) for gradients in found) <= BOUND


@needs_triton
@pytest.mark.slow
def test_training_is_the_same_by_kernels_and_in_every_run(pools):
    one, other = pools(4).run(work.trained, OVER_NETWORK, 3)[0], pools(4).run(by_kernels, OVER_NETWORK, work.trained, 3)
    full = pools(4).run(work.trained, OVER_NETWORK.but(per_node=None), 3)[0]
    assert all(torch.equal(weights[name], value) for weights in other for name, value in one.items())
    assert work.error(one, full) <= 1e-4


UNITS = [
    UnitShape("a", 37, 37, torch.float32),
    UnitShape("b", 5, 0, torch.bfloat16),
    UnitShape("c", 64, 64, torch.bfloat16),
]


def crossed(_rank, minibatches):
    """What crosses the network while nothing but the node is asked for, and in the two exchanges between nodes."""
    memory = NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem((2, 2)))
    arena = FarArena(memory, UNITS, "slots", 2)
    log = memory.library.log

    def got():
        """What was fetched since this was asked last."""
        found = [(device, nbytes) for what, nbytes, device in log if what == "get_nbi"]
        told_of.extend(log)
        log.clear()
        return found

    told_of = []
    told = []
    for _ in range(minibatches):
        arena.fetch()
        published = got()
        memory.meet(MAIN)
        for unit, shape in enumerate(UNITS):
            for _ in range(3):
                arena.gather(unit, torch.empty(4 * shape.gather, dtype=shape.dtype))
                arena.push(unit, torch.ones(4 * shape.push))
        arena.complete()
        inside = got()
        arena.meet()
        arena.offer_sums()
        log.clear()
        arena.sum_nodes()
        assert ("meet", 0, None) not in log  # waiting in there would count as transfer
        summed = got()
        sums = [arena.gradients(unit).tolist() for unit in range(len(UNITS))]
        memory.meet(MAIN)
        told.append((published, inside, summed, sums))
    put = [what for what, *_ in told_of if what == "put_nbi"]
    memory.close()
    return told, put


def test_each_remote_shard_crosses_the_network_once_per_node(pools):
    found = pools(4).run(crossed, 2)
    for node in ((0, 1), (2, 3)):
        for number in range(2):
            published, inside, summed, _ = zip(*(found[device][0][number] for device in node), strict=True)
            shards_of = [(d, 4 * 37) for d in range(4) if d not in node]
            shards_of += [(d, 2 * n) for d in range(4) if d not in node for n in (5, 64)]
            assert sorted((d, nbytes) for each in published for d, nbytes in each) == sorted(shards_of)
            assert not any(inside)
            sums_of = [(d, 4 * n) for d in range(4) if d not in node for n in (37, 64)]
            assert sorted((d, nbytes) for each in summed for d, nbytes in each) == sorted(sums_of)
    assert not any(put for _, put in found)
    for told, _ in found:
        assert [sums for *_, sums in told] == [[[12.0] * 37, [], [12.0] * 64]] * 2


def crossed_in_rounds(rank, minibatches):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spare, "ROOM", 64)
        return crossed(rank, minibatches)


def test_sums_of_nodes_that_do_not_fit_at_once_cross_in_rounds(pools):
    for told, _ in pools(4).run(crossed_in_rounds, 2):
        for _, _, summed, sums in told:
            assert sum(nbytes for _, nbytes in summed) == 4 * (37 + 64)
            assert max(nbytes for _, nbytes in summed) == 64
            assert sums == [[12.0] * 37, [], [12.0] * 64]


def refused(_rank, machines, per_node):
    memory = NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem(machines))
    told = work.told(lambda: FarArena(memory, UNITS, "slots", per_node))
    memory.meet(MAIN)
    memory.close()
    return told


def test_nodes_whose_devices_do_not_reach_each_other_are_refused_by_all_alike(pools):
    told = set(pools(4).run(refused, (1, 2, 1), 2))
    assert told == {"nodes of 2: device 0 has no address of all 2 devices of its node; use --devices-per-node 1"}
    assert set(pools(4).run(refused, (2, 2), 4)) == {"nothing was refused"}  # full sharding, over a network
    assert set(pools(4).run(refused, (2, 2), 1)) == {"nothing was refused"}


def reach_of(near, per_node):
    """What an arena says of devices with addresses of those."""
    arena = object.__new__(FarArena)
    arena.memory = arena._remote = SimpleNamespace(size=len(near), every_near=near, all_near=False)
    arena.per_node, arena.nodes, arena.accumulate = per_node, len(near) // per_node, "slots"
    return work.told(arena._check_reach)


def all_splits(size):
    """All ways in which so many devices can be spread over machines, as runs of devices that have addresses."""
    for cuts in itertools.product([False, True], repeat=size - 1):
        starts = [0, *(d for d, cut in enumerate(cuts, 1) if cut)]
        yield tuple(range(a, b) for a, b in zip(starts, [*starts[1:], size], strict=True) for _ in range(a, b))


def test_who_takes_the_way_out_is_not_refused_again():
    refused = 0
    for size in range(1, 9):
        divisors = [n for n in range(1, size) if size % n == 0]
        for near in all_splits(size):
            told = {n: reach_of(near, n) for n in divisors}
            for line in set(told.values()) - {"nothing was refused"}:
                way_out = int(line.rpartition("use --devices-per-node ")[2])
                assert told[way_out] == "nothing was refused"  # so it is a divisor, and another one
                assert all(told[n] != "nothing was refused" for n in divisors if n > way_out)
                refused += 1
    assert refused > 100
