"""Backend nvshmem without NVSHMEM: a fake keeps its promises between processes (fake_nvshmem), so that slots, order,
settling and publishing can be held against one process, and against shared memory to the last bit."""

import itertools

import nets
import pytest
import shards
import torch
import work
from fake_nvshmem import FakeNvshmem
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import MixedPrecisionPolicy
from work import Case

from odc_engine.backends.base import MAIN
from odc_engine.backends.nvshmem.memory import NvshmemMemory, _run_around
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.fsdp import on_demand as fsdp
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena
from odc_engine.places.place import Processor
from odc_engine.places.streams import StreamLane
from odc_engine.runs.verify import BOUND

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)
UNEVEN = Case((4, 1, 2, 0), backend="nvshmem", accumulate="slots", machines=(2, 2))
EVEN = Case((2, 2, 2), backend="nvshmem", accumulate="slots", machines=(2, 1))
CASES = {
    "every device on a machine of its own": UNEVEN.but(machines=(1, 1, 1, 1)),
    "two machines of two": UNEVEN,
    "two machines, and parameters that few use": UNEVEN.but(model=nets.Choosy, machines=(1, 3)),
    "one machine": UNEVEN.but(machines=(4,)),
    "collective": EVEN.but(sync="collective"),
    "deferred": EVEN.but(sync="deferred"),
    "gathers ahead, and every push is waited for": EVEN.but(prefetch=2, trail=1, reshard=False),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_one_process(pools, name):
    case = CASES[name]
    expected = work.reference(case)
    found = pools(len(case.counts)).run(work.gradients, case)
    assert max(work.error(gradients, expected) for gradients in found) <= BOUND


@settings(max_examples=4)
@given(
    counts=st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(any),
    machines=st.sampled_from([(1, 1, 1), (2, 1), (1, 2)]),
    model=st.sampled_from([nets.Net, nets.Choosy, nets.Half, nets.Narrow]),
)
def test_training_has_the_bits_of_slots_in_shared_memory(pools, counts, machines, model):
    """The same sums in the same order, over several minibatches."""
    case = Case(tuple(counts), model=model, backend="nvshmem", accumulate="slots", machines=machines)
    found = pools(3).run(work.trained, case, 3)
    expected = pools(3).run(work.trained, case.but(backend="shm"), 3)[0]
    for weights in found:
        assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_bf16_weights_travel_and_fp32_gradients(pools):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    case = UNEVEN.but(policy=policy)
    found = pools(4).run(work.gradients, case)[0]
    expected = pools(4).run(work.gradients, case.but(backend="shm"))[0]
    assert all(torch.equal(found[name], value) for name, value in expected.items())


UNITS = [
    UnitShape("a", 37, 37, torch.float32),
    UnitShape("b", 5, 0, torch.bfloat16),
    UnitShape("c", 64, 64, torch.bfloat16),
]


def memory_of(machines):
    return NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem(machines))


def logged(_rank, machines, pushes):
    """What a device asks the library for: pushes of units, then the minibatch's end."""
    memory = memory_of(machines)
    arena = FarArena(memory, UNITS, "slots")
    log = memory.library.log
    log.clear()
    told = []
    for unit in pushes:
        arena.push(unit, torch.ones(memory.size * UNITS[unit].push))
        told.append([what for what, _ in log])
        log.clear()
    arena.complete()
    told.append([what for what, _ in log])
    memory.meet(MAIN)
    memory.close()
    return told


def test_nothing_waits_for_what_is_sent_but_the_next_to_the_same_slots_and_the_end(pools):
    """So it travels while the next layers' backward goes on."""
    for told in pools(2).run(logged, (1, 1), (2, 0, 2, 0, 0)):
        first, once_more = ["put"], ["get", "put"]
        assert told[:2] == [first, first]
        assert told[2] == ["quiet", *once_more]
        assert told[3] == once_more  # the same quiet was good for it, too
        assert told[4] == ["quiet", *once_more]
        assert told[5] == ["quiet"]


def gathered(_rank, machines, units):
    """What a device asks the library for where it gathers units, and whether all was there when it copied it."""
    memory = memory_of(machines)
    arena = FarArena(memory, UNITS, "slots")
    memory.meet(MAIN)
    told = []
    for unit in units:
        memory.library.log.clear()
        shape = UNITS[unit]
        arena.gather(unit, torch.empty(memory.size * shape.gather, dtype=shape.dtype))
        told.append(list(memory.library.log))
    near = list(memory.near)
    memory.meet(MAIN)
    memory.close()
    return near, told


@pytest.mark.parametrize("machines", [(1, 1, 1), (2, 1, 1), (1, 3)])
def test_all_far_shards_of_a_unit_are_asked_for_before_any_is_waited_for(pools, machines):
    size = sum(machines)
    for near, told in pools(size).run(gathered, machines, (0, 2)):
        for calls in told:
            *asked, last = calls
            assert {what for what, _ in asked} == {"get_nbi"}
            assert sorted(device for _, device in asked) == [d for d in range(size) if d not in near]
            assert last == ("quiet", None)


def test_units_that_nothing_was_pushed_of_are_cleared_at_far_owners(pools):
    for told in pools(2).run(logged, (1, 1), (0,)):
        assert told == [["put"], ["put", "quiet"]]


def test_where_all_are_near_nothing_is_sent(pools):
    for told in pools(2).run(logged, (2,), (0, 2, 0)):
        assert not any(told)


def impatient(_rank, machines):
    """A second push that does not wait for the first to arrive."""
    memory = memory_of(machines)
    arena = FarArena(memory, UNITS, "slots")
    memory.arrive = lambda: None
    wrong = 0
    for _ in range(20):
        for _ in range(2):
            arena.push(0, torch.ones(memory.size * 37))
        arena.complete()
        memory.meet(MAIN)
        wrong += not torch.equal(arena.gradients(0), torch.full((37,), 4.0))
        memory.meet(MAIN)
    memory.close()
    return wrong


def test_the_fake_shows_a_missing_quiet(pools):
    assert all(pools(2).run(impatient, (1, 1)))


FIX = "use --accumulate slots, or --sharding hybrid"


def refused(_rank, machines):
    memory = memory_of(machines)
    told = work.told(lambda: FarArena(memory, UNITS, "locked"))
    memory.meet(MAIN)
    memory.close()
    return told


def test_sums_that_a_network_would_have_to_add_to_are_refused(pools):
    told = pools(3).run(refused, (2, 1))
    assert told[0] == f"devices 2 are beyond a network, which adds nothing to a sum; {FIX}"
    assert told[2].startswith("devices 0, 1 are beyond")


class Line(FakeNvshmem):
    """Addresses reach the neighbours in a line only."""

    def mapped(self, mine, device):
        return super().mapped(mine, device) if abs(device - self._rank) < 2 else None


def near_and_met(_rank):
    memory = NvshmemMemory(SharedMemory(timeout=30.0), Line((3,)))
    told = work.told(lambda: FarArena(memory, UNITS, "locked"))
    memory.library.log.clear()
    memory.meet(MAIN)
    met = [what for what, _ in memory.library.log]
    memory.close()
    return len(memory.near), told, met


def test_what_only_some_are_near_to_is_decided_by_all_alike(pools):
    """A device that all are near to meets through the library as the others do, and refuses what they refuse."""
    found = pools(3).run(near_and_met)
    assert [near for near, *_ in found] == [2, 3, 2]
    assert all(f"beyond a network, which adds nothing to a sum; {FIX}" in told for _, told, _ in found)
    assert [met for *_, met in found] == [["meet"]] * 3


def unlocked(_rank):
    memory = memory_of((2,))
    arena = Arena(memory, UNITS, "locked")
    told = work.told(lambda: arena.push(0, torch.ones(2 * 37)))
    memory.meet(MAIN)
    memory.close()
    return told


def test_memory_without_locks_says_so(pools):
    assert set(pools(2).run(unlocked)) == {"this memory has no locks to add to a sum under; use --accumulate slots"}


def uneven(rank):
    memory = memory_of((1, 1))
    try:
        return work.told(lambda: memory.allocate(1024 * (1 + rank)))
    finally:
        memory.close()


def test_devices_with_unlike_models_are_refused(pools):
    assert set(pools(2).run(uneven)) == {"devices share 1024, 2048 bytes; make the same model on every device"}


def trained_by_kernels(rank, case):
    """Near parts by interpreted kernels, the others through the library."""
    shards.interpreted()
    from odc_engine.memory.gpu import FarGpuArena

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp, "arena_on", FarGpuArena)
        patch.setattr(Processor, "lane", lambda place, _: StreamLane(place.device))  # the interpreter knows one thread
        return work.trained(rank, case, 2)


@needs_triton
@pytest.mark.parametrize("machines", [(2, 1), (1, 2)])
def test_kernels_inside_a_machine_and_the_library_beyond_give_the_same_bits(pools, machines):
    case = Case((2, 1, 1), model=nets.Narrow, backend="nvshmem", accumulate="slots", machines=machines)
    found = pools(3).run(trained_by_kernels, case)
    expected = pools(3).run(work.trained, case.but(backend="shm"), 2)[0]
    for weights in found:
        assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_near_devices_are_an_unbroken_run():
    for size in range(1, 6):
        for mapped in itertools.product([False, True], repeat=size):
            for rank in (r for r in range(size) if mapped[r]):
                run = _run_around(rank, list(mapped))
                assert rank in run
                assert all(mapped[d] for d in run)
                assert run.start == 0 or not mapped[run.start - 1]
                assert run.stop == size or not mapped[run.stop]
