"""Backend nvshmem without NVSHMEM: a fake keeps its promises between processes (fake_nvshmem), so that sums, order and
what crosses a network can be held against one process, and against shared memory to the last bit."""

import itertools
from types import SimpleNamespace

import nets
import pytest
import shards
import torch
import work
from fake_nvshmem import FakeNvshmem
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import MixedPrecisionPolicy
from transports import refused
from work import Case

from odc_engine.backends.base import MAIN
from odc_engine.backends.nvshmem.memory import NvshmemMemory, _run_around
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.fsdp import on_demand as fsdp
from odc_engine.memory import spare
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena
from odc_engine.memory.spare import ROOM
from odc_engine.places.place import Processor
from odc_engine.places.streams import StreamLane
from odc_engine.runs.verify import BOUND

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)
UNITS = [UnitShape("a", 37, 37, torch.float32), UnitShape("b", 5, 0, torch.bfloat16)]
UNITS.append(UnitShape("c", 64, 64, torch.bfloat16))
UNEVEN = Case((4, 1, 2, 0), backend="nvshmem", accumulate="slots", machines=(2, 2))
EVEN = Case((2, 2, 2), backend="nvshmem", accumulate="slots", machines=(2, 1))
NODES = Case((2, 1, 1, 0), model=nets.Choosy, backend="nvshmem", accumulate="slots", machines=(2, 2), per_node=2)
IN_PLACE = NODES.but(accumulate="locked", model=nets.Narrow)
CASES = {
    "every device on a machine of its own": UNEVEN.but(machines=(1, 1, 1, 1)),
    "two machines, and parameters that few use": UNEVEN.but(model=nets.Choosy, machines=(1, 3)),
    "one machine": UNEVEN.but(machines=(4,)),
    "collective": EVEN.but(sync="collective"),
    "deferred": EVEN.but(sync="deferred"),
    "gathers ahead, and every push is waited for": EVEN.but(prefetch=2, trail=1, reshard=False),
    "nodes": NODES,
    "slow: nodes, collective": NODES.but(counts=(1, 1, 1, 1), sync="collective"),
    "slow: nodes on one machine, deferred": NODES.but(counts=(1, 1, 1, 1), machines=(4,), sync="deferred"),
}
BY_KERNELS = {  # shared memory stands for GPUs of a machine (cuda_ipc)
    "one node, locked": Case((2, 1)),
    "one node, slots": Case((2, 1), accumulate="slots"),
    "slow: nodes, locked": NODES.but(backend="shm", accumulate="locked"),
    "slow: nodes of one": NODES.but(backend="shm", per_node=1),
    "nodes over a network, locked": IN_PLACE,
    "slow: nodes over a network": NODES,
    "nodes over a network, hierarchical": IN_PLACE.but(far="hierarchical"),
    "slow: nodes, hierarchical": NODES.but(backend="shm", far="hierarchical"),
}


def those(cases):
    marked = [pytest.param(case, id=name, marks=[pytest.mark.slow] * ("slow" in name)) for name, case in cases.items()]
    return pytest.mark.parametrize("case", marked)


@those(CASES)
def test_gradients_equal_one_process(pools, case):
    expected = work.reference(case)
    found = pools(len(case.counts)).run(work.gradients, case)
    assert max(work.error(gradients, expected) for gradients in found) <= BOUND


def by_kernels(rank, case):
    """Gradients of a device whose near bytes are moved by interpreted kernels, each done where it is given."""
    shards.interpreted()
    from odc_engine.memory.gpu import FarGpuArena, GpuArena

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp, "arena_on", FarGpuArena if case.backend == "nvshmem" else GpuArena)
        patch.setattr(Processor, "lane", lambda place, _: StreamLane(place.device))  # the interpreter knows one thread
        return work.gradients(rank, case)


@needs_triton
@those(BY_KERNELS)
def test_kernels_have_the_gradients_of_one_process(pools, case):
    """Atomic sums, too: nothing is pushed beyond the node."""
    expected = work.reference(case)
    found = pools(len(case.counts)).run(by_kernels, case)
    assert max(work.error(gradients, expected) for gradients in found) <= BOUND


@settings(max_examples=3)
@given(
    counts=st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(any),
    machines=st.sampled_from([(1, 1, 1), (2, 1), (1, 2)]),
    model=st.sampled_from([nets.Net, nets.Choosy, nets.Half, nets.Narrow]),
)
def test_training_has_the_bits_of_slots_in_shared_memory(pools, counts, machines, model):
    """The same sums in the same order, over several minibatches; bf16 weights travel, and fp32 gradients."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for some in ({}, {"policy": policy}):
        case = Case(tuple(counts), model=model, backend="nvshmem", accumulate="slots", machines=machines, **some)
        expected = pools(3).run(work.trained, case.but(backend="shm"), 2)[0]
        for found in pools(3).run(work.trained, case, 2):
            assert all(torch.equal(found[name], value) for name, value in expected.items())


# What an arena asks the library for: calls and bytes.


def memory_of(machines, library=FakeNvshmem):
    return NvshmemMemory(SharedMemory(timeout=30.0), library(machines))


def logged(rank, machines, pushes, room=ROOM):
    """Of gathers of all units, of pushes of some, and of the minibatch's end; and the sums that come of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spare, "ROOM", room)
        memory = memory_of(machines)
        arena = FarArena(memory, UNITS, "slots")
        log, told = memory.library.log, []

        def calls():
            told.append([(what, nbytes, device) for what, nbytes, device in log])
            log.clear()

        for unit, shape in enumerate(UNITS):
            arena.weights(rank, unit).copy_(torch.arange(shape.gather) + 64 * rank)
            arena.clear(unit)
        memory.meet(MAIN)
        log.clear()
        for unit, shape in enumerate(UNITS):
            out = torch.empty(memory.size * shape.gather, dtype=shape.dtype)
            arena.gather(unit, out)
            calls()
            parts = [torch.arange(shape.gather) + 64 * device for device in range(memory.size)]
            assert torch.equal(out, torch.cat(parts).to(shape.dtype))
        for unit in pushes:
            arena.push(unit, torch.arange(memory.size * UNITS[unit].push, dtype=torch.float32))
            calls()
        arena.complete()
        calls()
        arena.meet()
        for unit, shape in enumerate(UNITS):
            own = torch.arange(rank * shape.push, (rank + 1) * shape.push)
            assert torch.equal(arena.gradients(unit), memory.size * pushes.count(unit) * own.float())
        near = len(memory.near)
        memory.meet(MAIN)
        memory.close()
    return memory.size - near, told


MACHINES = pytest.mark.parametrize("machines", [(1, 1), (2, 2), (1, 2, 1), (2,)], ids=str)
WAIT = ("quiet", 0)


@MACHINES
def test_all_far_parts_are_under_way_at_once_and_waited_for_once(pools, machines):
    """Nothing waits for a push but the next one and the end, so it travels while the next layers' backward goes on."""
    for beyond, told in pools(sum(machines)).run(logged, machines, (2, 0, 2, 0, 0)):
        calls = [[call[:2] for call in each] for each in told]
        if not beyond:
            assert not any(calls)
            continue
        gathers = [[("get_nbi", nbytes)] * beyond + [WAIT] for nbytes in (4 * 37, 2 * 5, 2 * 64)]
        a, c = ([("put_nbi", 4 * n)] * beyond for n in (37, 64))
        got_a, got_c = ([("get_nbi", nbytes) for _, nbytes in each] for each in (a, c))
        first = [c, [WAIT, *a]]
        again = [[WAIT, *got_c, WAIT, *c], *[[WAIT, *got_a, WAIT, *a]] * 2]
        assert calls == [*gathers, *first, *again, [WAIT]]
        assert all(len({device for *_, device in each[:beyond]}) == beyond for each in told[:3])


@MACHINES
@pytest.mark.parametrize("pushes", [(2, 0, 2), (0,), ()], ids=str)
def test_what_does_not_fit_passes_in_rounds_all_devices_in_each(pools, machines, pushes):
    """The same bytes and the same sums, whatever fits at once. Far owners get zeros of what was not pushed."""
    room = 64 * 3
    whole, rounds = (pools(sum(machines)).run(logged, machines, pushes, size) for size in (ROOM, room))
    for (beyond, told), (_, pieces) in zip(whole, rounds, strict=True):
        for one, other in zip(told, pieces, strict=True):
            for what in ("put_nbi", "get_nbi"):
                sums = [sum(nbytes for w, nbytes, _ in each if w == what) for each in (one, other)]
                assert sums[0] == sums[1]
                of_devices = {sum(n for w, n, d in other if (w, d) == (what, device)) for device in range(4)} - {0}
                assert len(of_devices) <= 1
        assert all(nbytes <= room for each in pieces for _, nbytes, _ in each)
        for each, nbytes in zip(pieces, (4 * 37, 2 * 5, 2 * 64), strict=False):
            turns = [what for what, *_ in each].count("quiet")
            assert len(each) == turns * (1 + beyond)
            assert (turns > 1) == (nbytes * beyond > room)
        zeros = sum(nbytes for what, nbytes, _ in told[-1] if what == "put_nbi")
        assert zeros == beyond * 4 * sum(UNITS[unit].push for unit in range(3) if unit not in pushes)


def crossed(_rank, room):
    """What crosses the network while nothing but the node is asked for, and in the two exchanges between nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spare, "ROOM", room)
        memory = memory_of((2, 2))
        arena = FarArena(memory, UNITS, "slots", 2)
        log, told = memory.library.log, []

        def got():
            """What was fetched since this was asked last."""
            assert not [what for what, *_ in log if what == "put_nbi"]
            found = [(device, nbytes) for what, nbytes, device in log if what == "get_nbi"]
            log.clear()
            return found

        for _ in range(2):
            got()
            arena.fetch()
            published = got()
            memory.meet(MAIN)
            for unit, shape in enumerate(UNITS):
                for _ in range(3):
                    arena.gather(unit, torch.empty(4 * shape.gather, dtype=shape.dtype))
                    arena.push(unit, torch.ones(4 * shape.push))
            arena.complete()
            assert not got()
            arena.meet()
            if arena.offer_sums():
                arena.meet()
            log.clear()
            arena.sum_nodes()
            assert ("meet", 0, None) not in log  # waiting in there would count as transfer
            told.append((published, got()))
            assert [arena.gradients(unit).tolist() for unit in range(3)] == [[12.0] * 37, [], [12.0] * 64]
            memory.meet(MAIN)
        memory.close()
    return told


@pytest.mark.parametrize("room", [ROOM, 64])
def test_each_remote_shard_and_sum_crosses_the_network_once_per_node(pools, room):
    found = pools(4).run(crossed, room)
    for node in ((0, 1), (2, 3)):
        far = [d for d in range(4) if d not in node]
        for number in range(2):
            published, summed = zip(*(found[device][number] for device in node), strict=True)
            shards_of = [(d, nbytes) for d in far for nbytes in (4 * 37, 2 * 5, 2 * 64)]
            assert sorted(itertools.chain(*published)) == sorted(shards_of)
            sums = list(itertools.chain(*summed))
            for d in far:
                assert sum(nbytes for device, nbytes in sums if device == d) == 4 * (37 + 64)
            assert max(nbytes for _, nbytes in sums) == (64 if room == 64 else 4 * 64)


@pytest.mark.parametrize("devices", [2, 4, 16])
def test_room_is_for_what_others_have_of_the_largest_unit_and_at_most_so_much(devices):
    assert spare.room_for(4 << 20, devices - 1) == 4 * (devices - 1) << 20
    assert spare.room_for(4 << 30, devices - 1) == ROOM == 256 << 20


# What is refused by all alike, and who is near.


class Line(FakeNvshmem):
    """Addresses reach the neighbours in a line only."""

    def mapped(self, mine, device):
        return super().mapped(mine, device) if abs(device - self._calls.my_pe()) < 2 else None


def told_of(_rank, machines, kind, accumulate, per_node, library=FakeNvshmem):
    memory = memory_of(machines, library)

    def made():
        arena = kind(memory, UNITS, accumulate, per_node)
        if kind is Arena:
            arena.push(0, torch.ones(memory.size * 37))

    found = refused(made)
    memory.library.log.clear()
    memory.meet(MAIN)
    met = [what for what, *_ in memory.library.log]
    memory.close()
    return found, len(memory.near), met


@pytest.mark.parametrize(
    ("how", "told", "met"),
    [
        (((2, 1), FarArena, "locked", None), "InputError", ["meet"]),
        (((3,), FarArena, "locked", None, Line), "InputError", ["meet"]),  # by the one that all are near to, too
        (((2,), Arena, "locked", None), "InputError", []),  # memory without locks
        (((1, 2, 1), FarArena, "slots", 2), "InputError", ["meet"]),  # a node whose devices do not reach each other
        (((2, 2), FarArena, "slots", 4), "", ["meet"]),  # full sharding, over a network
        (((2, 2), FarArena, "slots", 1), "", ["meet"]),
    ],
    ids=str,
)
def test_what_some_cannot_do_all_refuse(pools, how, told, met):
    found = pools(sum(how[0])).run(told_of, *how)
    assert [(each, meets) for each, _, meets in found] == [(told, met)] * len(found)
    assert Line not in how or [near for _, near, _ in found] == [2, 3, 2]


def test_near_devices_are_an_unbroken_run():
    for size in range(1, 6):
        for mapped in itertools.product([False, True], repeat=size):
            for rank in (r for r in range(size) if mapped[r]):
                run = _run_around(rank, list(mapped))
                assert rank in run
                assert all(mapped[d] for d in run)
                assert run.start == 0 or not mapped[run.start - 1]
                assert run.stop == size or not mapped[run.stop]


def reach_of(near, per_node):
    """What an arena says of devices with addresses of those."""
    arena = object.__new__(FarArena)
    arena.memory = SimpleNamespace(size=len(near), every_near=near, all_near=False)
    arena.per_node, arena.nodes, arena.accumulate = per_node, len(near) // per_node, "slots"
    return work.told(arena._check_reach)


def all_splits(size):
    """All ways in which so many devices can be spread over machines, as runs of devices that have addresses."""
    for cuts in itertools.product([False, True], repeat=size - 1):
        starts = [0, *(d for d, cut in enumerate(cuts, 1) if cut)]
        yield tuple(range(a, b) for a, b in zip(starts, [*starts[1:], size], strict=True) for _ in range(a, b))


def test_who_takes_the_way_out_is_not_refused_again():
    refusals = 0
    for size in range(1, 9):
        divisors = [n for n in range(1, size) if size % n == 0]
        for near in all_splits(size):
            told = {n: reach_of(near, n) for n in divisors}
            for line in set(told.values()) - {"nothing was refused"}:
                way_out = int(line.rpartition(" ")[2])
                assert told[way_out] == "nothing was refused"  # so it is a divisor, and another one
                assert all(told[n] != "nothing was refused" for n in divisors if n > way_out)
                refusals += 1
    assert refusals > 100
