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

from odc_engine.backends.base import MAIN, FarMemory
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


def cleared(arena):
    """As weights are published, once all have read the sums."""
    for unit in range(len(UNITS)):
        arena.clear(unit)
    arena.memory.meet(MAIN)
    return arena


def logged(_rank, machines, pushes, room=ROOM):
    """What a device asks the library for: pushes of units, then the minibatch's end. And the sums that come of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spare, "ROOM", room)
        memory = memory_of(machines)
        arena = cleared(FarArena(memory, UNITS, "slots"))
        log, told = memory.library.log, []
        for unit in (*pushes, None):
            log.clear()
            if unit is None:
                arena.complete()
            else:
                arena.push(unit, torch.arange(memory.size * UNITS[unit].push, dtype=torch.float32))
            told.append([(what, nbytes) for what, nbytes, _ in log])
        arena.meet()
        sums = [arena.gradients(unit).clone() for unit in range(len(UNITS))]
        memory.meet(MAIN)
        memory.close()
    return told, sums


MACHINES = pytest.mark.parametrize("machines", [(1, 1), (2, 2), (1, 1, 1, 1), (1, 2, 1)], ids=str)


@MACHINES
def test_all_owners_get_their_part_at_once_and_nothing_waits_but_the_next_push_and_the_end(pools, machines):
    """So it travels while the next layers' backward goes on. Calls and bytes, whatever the number of owners."""
    size = sum(machines)
    of_ranks = [own for own in machines for _ in range(own)]
    for own, (told, _) in zip(of_ranks, pools(size).run(logged, machines, (2, 0, 2, 0, 0)), strict=True):
        a, c = ([(what, 4 * n)] * (size - own) for what, n in (("put_nbi", 37), ("put_nbi", 64)))
        got_a, got_c = ([("get_nbi", nbytes) for _, nbytes in each] for each in (a, c))
        wait = [("quiet", 0)]
        first, end = [c, wait + a], wait
        assert told == [*first, wait + got_c + wait + c, *[wait + got_a + wait + a] * 2, end]


@MACHINES
def test_what_all_units_take_together_passes_through_room_of_so_many_bytes_in_rounds(pools, machines):
    """The same bytes and the same sums, whatever fits at once."""
    size = sum(machines)
    pushes = (2, 0, 2)
    whole, rounds = (pools(size).run(logged, machines, pushes, room) for room in (ROOM, 64 * 3))
    for (told, sums), (pieces, same) in zip(whole, rounds, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(sums, same, strict=True))
        assert all(nbytes <= 64 * 3 for push in pieces for _, nbytes in push)
        for one, other in zip(told, pieces, strict=True):
            for what in ("put_nbi", "get_nbi"):
                assert sum(n for w, n in one if w == what) == sum(n for w, n in other if w == what)
        assert len(pieces[0]) > len(told[0])


@pytest.mark.parametrize("devices", [2, 4, 16])
def test_what_is_on_its_way_takes_what_others_have_of_the_largest_unit_and_at_most_so_much(devices):
    assert spare.room_for(4 << 20, devices - 1) == 4 * (devices - 1) << 20
    assert spare.room_for(4 << 30, devices - 1) == ROOM == 256 << 20


def gathered(rank, machines, units, room=ROOM):
    """What a device asks the library for where it gathers units, with room for so many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spare, "ROOM", room)
        memory = memory_of(machines)
        arena = FarArena(memory, UNITS, "slots")
    for unit, shape in enumerate(UNITS):
        arena.weights(rank, unit).copy_(torch.arange(shape.gather) + 64 * rank)
    memory.meet(MAIN)
    told = []
    for unit in units:
        memory.library.log.clear()
        shape = UNITS[unit]
        out = torch.empty(memory.size * shape.gather, dtype=shape.dtype)
        arena.gather(unit, out)
        told.append([(what, device) for what, _, device in memory.library.log])
        parts = [torch.arange(shape.gather) + 64 * device for device in range(memory.size)]
        assert torch.equal(out, torch.cat(parts).to(shape.dtype))
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


@pytest.mark.parametrize("machines", [(1, 1, 1), (2, 1, 1), (1, 3)])
def test_what_is_gathered_passes_through_room_of_so_many_bytes_in_rounds_all_devices_in_each(pools, machines):
    size = sum(machines)
    for near, told in pools(size).run(gathered, machines, (0, 1, 2), 64 * 2):
        beyond = size - len(near)
        for calls, of_one in zip(told, (4 * 37, 2 * 5, 2 * 64), strict=True):
            rounds = calls.count(("quiet", None))
            assert calls[-1] == ("quiet", None)
            assert len(calls) == rounds * (1 + beyond)
            assert (rounds > 1) == (of_one * beyond > 64 * 2)


def test_units_that_nothing_was_pushed_of_are_cleared_at_far_owners_and_waited_for_once(pools):
    for told, _ in pools(2).run(logged, (1, 1), (0,)):
        assert told == [[("put_nbi", 4 * 37)], [("quiet", 0), ("put_nbi", 4 * 64), ("quiet", 0)]]
    for told, sums in pools(4).run(logged, (1, 1, 2), ()):
        *zeros, last = told[0]
        assert len(zeros) in (2 * 2, 2 * 3)  # of two units
        assert (last, {what for what, _ in zeros}) == (("quiet", 0), {"put_nbi"})
        assert not any(each.any() for each in sums)


def test_where_all_are_near_nothing_is_sent(pools):
    for told, _ in pools(2).run(logged, (2,), (0, 2, 0)):
        assert not any(told)


def broken(_rank, machines, what):
    """How many minibatches of a device have other sums than they should, where one thing is left out."""
    memory = memory_of(machines)
    arena = cleared(FarArena(memory, UNITS, "slots"))
    if what == "quiet before sums are fetched again or their room is used again":
        memory.arrive = lambda: None
    elif what == "quiet behind what is fetched":
        memory.fetch_all = lambda places: [FarMemory.fetch_all(Unwaited(memory), places)]
    elif what == "meeting of all through the library":
        memory._meet_far = lambda: None
    wrong = 0
    for number in range(12):
        for _ in range(2):
            for unit in (0, 2):
                arena.push(unit, torch.full((memory.size * UNITS[unit].push,), 1.0 + number))
        arena.complete()
        arena.meet()
        for unit in (0, 2):
            whole = torch.full((UNITS[unit].push,), 2.0 * memory.size * (1 + number))
            wrong += not torch.equal(arena.gradients(unit), whole)
        memory.meet(MAIN)
        cleared(arena)
    memory.close()
    return wrong


class Unwaited:
    """Asks for what is far and does not wait for it."""

    def __init__(self, memory):
        self._memory = memory

    def fetch(self, device, start, into):
        self._memory.library.get_nbi(into, self._memory._place(start, into), device)


@pytest.mark.parametrize("machines", [(1, 1), (2, 1)])
@pytest.mark.parametrize(
    "what",
    [
        "nothing",
        "quiet before sums are fetched again or their room is used again",
        "quiet behind what is fetched",
        "meeting of all through the library",
    ],
)
def test_the_fake_shows_what_is_left_out(pools, machines, what):
    assert any(pools(sum(machines)).run(broken, machines, what)) == (what != "nothing")


FIX = "use --accumulate slots, or --sharding hybrid"


def refused(_rank, machines):
    memory = memory_of(machines)
    told = work.told(lambda: FarArena(memory, UNITS, "locked"))
    memory.meet(MAIN)
    memory.close()
    return told


def test_sums_that_a_network_would_have_to_add_to_are_refused(pools):
    told = pools(3).run(refused, (2, 1))
    assert told[0] == f"devices 2 are reached over a network, which cannot add to a sum; {FIX}"
    assert told[2].startswith("devices 0, 1 are reached over")


class Line(FakeNvshmem):
    """Addresses reach the neighbours in a line only."""

    def mapped(self, mine, device):
        return super().mapped(mine, device) if abs(device - self._calls.my_pe()) < 2 else None


def near_and_met(_rank):
    memory = NvshmemMemory(SharedMemory(timeout=30.0), Line((3,)))
    told = work.told(lambda: FarArena(memory, UNITS, "locked"))
    memory.library.log.clear()
    memory.meet(MAIN)
    met = [what for what, *_ in memory.library.log]
    memory.close()
    return len(memory.near), told, met


def test_what_only_some_are_near_to_is_decided_by_all_alike(pools):
    """A device that all are near to meets through the library as the others do, and refuses what they refuse."""
    found = pools(3).run(near_and_met)
    assert [near for near, *_ in found] == [2, 3, 2]
    assert all(f"reached over a network, which cannot add to a sum; {FIX}" in told for _, told, _ in found)
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
