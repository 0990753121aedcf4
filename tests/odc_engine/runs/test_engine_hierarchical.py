"""Hierarchical transfers in the engine: units come into a node one by one beside compute, and gradients are right."""

import time

import faults
import nets
import pytest
import torch
import work
from arenas import on_every_device, units
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import file_of, minibatch
from teams import job_for, on_threads, recorded, shm_records, trained, worst
from work import Case

from odc_engine.backends.base import MAIN
from odc_engine.devices.run_device import as_block
from odc_engine.errors import PeerLost
from odc_engine.job import job_of
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.runs import run
from odc_engine.runs.verify import BOUND
from odcsim.errors import InputError
from odcsim.program import NODES
from odcsim.recipe import ACCUMULATE

UNEVEN = Case((4, 1, 2, 0), per_node=2, far="hierarchical")
OVER_NETWORK = UNEVEN.but(backend="nvshmem", accumulate="slots", machines=(2, 2))
HIERARCHICAL = {"far": "hierarchical", "devices_per_node": 2}


@settings(max_examples=15)
@given(st.sampled_from([(4, 2), (4, 1), (3, 1), (6, 2)]), units, st.sampled_from(ACCUMULATE), st.randoms())
def test_units_come_one_by_one_and_who_gathers_waits_for_its_node(size, shapes, accumulate, random):
    """Devices are as late as they like with what they bring."""
    devices, per_node = size
    late = [random.random() * 0.01 for _ in range(devices)]

    def twice(memory):
        arena = Arena(memory, shapes, accumulate, per_node)
        return [minibatch_of(arena, shapes, number, late[memory.rank]) for number in range(2)]

    for rank, minibatches in enumerate(on_every_device(devices, twice)):
        for number, (whole, sums) in enumerate(minibatches):
            for shape, got, total in zip(shapes, whole, sums, strict=True):
                each = [torch.arange(shape.gather) % 30 + 30 * device + number for device in range(devices)]
                assert torch.equal(got, torch.cat(each).to(shape.dtype))
                own = torch.arange(rank * shape.push, (rank + 1) * shape.push, dtype=torch.float32)
                assert torch.equal(total, devices * own + sum(range(devices)))


def minibatch_of(arena, shapes, number, late):
    """Publish, bring in, gather, push, settle. A device pushes when its own node has a unit, whatever others have."""
    memory = arena.memory
    for unit, shape in enumerate(shapes):
        arena.weights(memory.rank, unit).copy_(torch.arange(shape.gather) % 30 + 30 * memory.rank + number)
    memory.meet(MAIN)
    arena.begin()
    time.sleep(late)
    whole = []
    for unit in range(len(shapes)):
        arena.bring(unit)
    for unit, shape in enumerate(shapes):
        out = torch.full((memory.size * shape.gather,), -1.0, dtype=shape.dtype)
        arena.gather(unit, out)
        whole.append(out)
        arena.push(unit, torch.arange(memory.size * shape.push, dtype=torch.float32) + memory.rank)
    memory.meet(MAIN)
    arena.sum_nodes()
    return whole, [arena.gradients(unit).clone() for unit in range(len(shapes))]


@pytest.mark.parametrize(
    "case",
    [
        UNEVEN.but(model=nets.Choosy),
        OVER_NETWORK,
        OVER_NETWORK.but(model=nets.Narrow, reshard=False),
        pytest.param(UNEVEN.but(per_node=1, accumulate="slots"), marks=pytest.mark.slow),
        pytest.param(UNEVEN.but(per_node=4), marks=pytest.mark.slow),
    ],
    ids=lambda c: f"{c.backend}-{c.accumulate}-{c.per_node}-{c.model.__name__}",
)
def test_gradients_equal_one_process(pools, case):
    expected = work.reference(case)
    assert max(work.error(found, expected) for found in pools(4).run(work.gradients, case)) <= BOUND


@pytest.mark.parametrize("case", [UNEVEN.but(accumulate="slots"), pytest.param(OVER_NETWORK, marks=pytest.mark.slow)])
def test_training_has_the_bits_of_hybrid_sharding(pools, case):
    """The same sums in the same order: only when weights come is another matter."""
    one, other = (pools(4).run(work.trained, c, 3)[0] for c in (case, case.but(far="each")))
    assert all(torch.equal(one[name], value) for name, value in other.items())
    assert work.error(one, dict(case.fresh().named_parameters())) > 0.02


def test_threads_do_the_same():
    assert worst(job_for(minibatch(4, 1, 2, 0), sync="on-demand", **HIERARCHICAL)) <= BOUND
    ours, full = (
        on_threads(job_for(*[minibatch(4, 1, 2, 0)] * 4, sync="on-demand", **options), trained)
        for options in (HIERARCHICAL, {})
    )
    for mine in ours:
        assert all(torch.allclose(weight, full[0][name], atol=1e-5, rtol=0) for name, weight in mine.items())


@pytest.mark.parametrize("backend", ["shm", pytest.param("threads", marks=pytest.mark.slow)])
def test_the_timeline_has_every_step_of_the_prediction_in_its_order(pools, backend):
    file = file_of((2, 1, 2, 2), (2, 2, 0, 2))
    job = job_of(file, sync="on-demand", backend=backend, timeout=30.0, **HIERARCHICAL)
    every = pools(4).run(shm_records, job) if backend == "shm" else on_threads(job, recorded)
    line = run.assembled(file, job, [run.block_of(n, file.schedules[n], job, [d[n] for d in every]) for n in range(2)])
    assert (line.about.recipe, line.about.nodes) == (job.cost.ran, 2)
    steps = line.blocks[0].program.steps
    assert steps == job.cost.program(2).steps  # what a simulation of this cost runs
    brought = [i for i, s in enumerate(steps) if s.lane == NODES]
    for n in range(2):
        asked, had = as_block([device[n] for device in every])
        assert (had[brought] > asked[brought]).all()  # by everybody, also by who has no microbatch
        for i, step in enumerate(steps):
            assert all((asked[i] >= had[need] - 1e-4).all() for need in step.after), (i, step)


def test_each_remote_shard_crosses_the_network_once_per_node_however_often_it_is_gathered(pools):
    """And so does each sum of a shard. One counterpart has them, in two minibatches."""
    for asked, waited in pools(4).run(crossed, 3):
        assert asked == waited == 2 * len(UNITS) * 2


UNITS = [UnitShape("a", 37, 37, torch.float32), UnitShape("c", 64, 64, torch.bfloat16)]


def crossed(rank, times):
    from fake_nvshmem import FakeNvshmem

    from odc_engine.backends.nvshmem.memory import NvshmemMemory
    from odc_engine.backends.shm.memory import SharedMemory
    from odc_engine.memory.far import FarArena

    memory = NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem((2, 2)))
    arena = FarArena(memory, UNITS, "slots", 2)
    for _ in range(2):
        memory.meet(MAIN)
        arena.begin()
        for unit, shape in enumerate(UNITS):
            arena.bring(unit)
            for _ in range(times):
                arena.gather(unit, torch.empty(4 * shape.gather, dtype=shape.dtype))
                arena.push(unit, torch.ones(4 * shape.push))
        arena.complete()
        arena.meet()
        arena.offer_sums()
        arena.sum_nodes()
        assert [arena.gradients(u).unique().tolist() for u in range(len(UNITS))] == [[4.0 * times]] * len(UNITS)
    log = [what for what, *_ in memory.library.log]
    memory.meet(MAIN)
    memory.close()
    assert rank in memory.every_near[rank]
    return log.count("get_nbi"), log.count("quiet")


@pytest.mark.parametrize("place", [pytest.param("forward", marks=pytest.mark.slow), "after a meeting"])
def test_a_killed_device_is_named_by_all_others(tmp_path, place):
    job = job_of(file_of(*[(2, 2, 2, 2)] * 4), sync="on-demand", timeout=30.0, **HIERARCHICAL)
    ended = faults.run(faults.training, tmp_path / "run", job, place, faults.KILL, devices=4)
    assert ended.code == 1
    for lines in ended.survivors.values():
        assert len(lines) == 1
        assert f"device {faults.VICTIM} died" in lines[0]


def test_who_brings_nothing_in_is_named_by_its_node():
    def one_is_silent(memory):
        arena = Arena(memory, UNITS, "locked", 2)
        memory.meet(MAIN)
        arena.begin()
        memory.timeout = 0.1
        if memory.rank == 1:
            return None
        arena.bring(0)
        try:
            arena.gather(0, torch.empty(4 * 37))
        except PeerLost as lost:
            return lost.devices
        return []

    assert on_every_device(4, one_is_silent) == [[1], None, [], []]


def test_what_cannot_run_is_refused():
    file = file_of((1, 1, 1, 1))
    with pytest.raises(InputError, match="hierarchical without --devices-per-node; say how many"):
        job_of(file, sync="on-demand", far="hierarchical")
    for sync, devices_per_node in (("collective", 2), ("on-demand", 4)):
        usual = job_of(file, sync=sync, far="hierarchical", devices_per_node=devices_per_node)
        assert usual.recipe.far == "each"
        assert usual.program(2) == job_of(file, sync=sync).program(2)


def refused(_rank):
    case = Case((1, 1))
    return [
        work.told(lambda changes=changes: work.gradients(0, case.but(**changes)))
        for changes in ({"far": "hierarchical"}, {"far": "hierachical"}, {**HIER, "sync": "collective"})
    ]


HIER = {"far": "hierarchical", "per_node": 1}


def test_a_library_user_is_told(pools):
    assert (
        pools(2).run(refused)
        == [
            [
                "hierarchical transfers with no nodes; give devices_per_node, and leave `meets` out",
                "unknown far mode 'hierachical'; did you mean 'hierarchical'?",
                "hierarchical transfers with transfers that meet; give devices_per_node, and leave `meets` out",
            ]
        ]
        * 2
    )
