"""Devices in nodes: hybrid sharding, and hierarchical transfers that bring units into a node one by one. Gathers and
pushes stay inside, one exchange between nodes is right, and gradients are those of one process."""

import time
from dataclasses import replace

import faults
import nets
import pytest
import torch
import work
from arenas import on_every_device, units
from fake_nvshmem import FakeNvshmem
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import file_of, minibatch
from jobs import job_for as shm_job
from teams import job_for, on_threads, recorded, shm_records, trained, worst
from work import Case

from odc_engine import backends
from odc_engine.backends.base import MAIN
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.backends.threads.memory import Team, ThreadMemory
from odc_engine.devices.run_device import as_block
from odc_engine.errors import PeerLost
from odc_engine.job import job_of
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena
from odc_engine.runs import run
from odc_engine.runs.verify import BOUND
from odcsim.errors import InputError
from odcsim.program import EVERY, NODES
from odcsim.recipe import ACCUMULATE

UNEVEN, EVEN = Case((4, 1, 2, 0), per_node=2), Case((2, 2, 2, 2), per_node=2)
BY_UNIT = UNEVEN.but(far="hierarchical")
OVER_NETWORK = BY_UNIT.but(backend="nvshmem", accumulate="slots", machines=(2, 2))
HYBRID = {"sharding": "hybrid", "devices_per_node": 2}
HIERARCHICAL = {"far": "hierarchical", "devices_per_node": 2}
EVENLY = {"sync": "collective", "accumulate": "slots"}
RECIPES = {"hybrid": HYBRID, "hierarchical": HIERARCHICAL}
SIZES = st.sampled_from([(4, 2), (4, 1), (3, 1), (2, 1), (4, 4), (6, 2)])


@settings(max_examples=30)
@given(SIZES, units, st.sampled_from(ACCUMULATE), st.booleans(), st.randoms())
def test_gathers_see_everybodys_weights_and_sums_hold_everybodys_pushes(size, shapes, accumulate, by_unit, random):
    """Devices are as late as they like with what they bring, and push when their own node has a unit."""
    devices, per_node = size
    by_unit = by_unit and devices > per_node
    late = [random.random() * 0.01 for _ in range(devices)]

    def twice(memory):
        arena = Arena(memory, shapes, accumulate, per_node)
        return [minibatch_of(arena, number) for number in range(2)]

    def minibatch_of(arena, number):
        memory, whole = arena.memory, []
        for unit, shape in enumerate(shapes):
            arena.weights(memory.rank, unit).copy_(torch.arange(shape.gather) % 30 + 30 * memory.rank + number)
        memory.meet(MAIN)
        if by_unit:
            arena.begin()
            time.sleep(late[memory.rank])
            for unit in range(len(shapes)):
                arena.bring(unit)
        else:
            arena.fetch()
            memory.meet(MAIN)
        for unit, shape in enumerate(shapes):
            whole.append(torch.full((devices * shape.gather,), -1.0, dtype=shape.dtype))
            arena.gather(unit, whole[-1])
            arena.push(unit, torch.arange(devices * shape.push, dtype=torch.float32) + memory.rank)
        memory.meet(MAIN)
        arena.sum_nodes()
        return whole, [arena.gradients(unit).clone() for unit in range(len(shapes))]

    for rank, minibatches in enumerate(on_every_device(devices, twice)):
        for number, (whole, sums) in enumerate(minibatches):
            for shape, got, total in zip(shapes, whole, sums, strict=True):
                each = [torch.arange(shape.gather) % 30 + 30 * device + number for device in range(devices)]
                assert torch.equal(got, torch.cat(each).to(shape.dtype))
                own = torch.arange(rank * shape.push, (rank + 1) * shape.push, dtype=torch.float32)
                assert torch.equal(total, devices * own + sum(range(devices)))


@pytest.mark.parametrize("accumulate", ACCUMULATE)
def test_gathers_and_pushes_touch_no_other_nodes_arena(accumulate):
    """What a device could not reach if nodes were real: the views of other nodes' arenas are empty while it works."""

    def alone(memory):
        arena = Arena(memory, [UnitShape("unit", 5, 7, torch.float32)], accumulate, 2)
        memory.meet(MAIN)
        node = memory.rank // 2
        foreign = [memory.view(device).clone() for device in range(4) if device // 2 != node]
        memory.meet(MAIN)
        if node == 0:
            arena.gather(0, torch.empty(20))
            arena.push(0, torch.ones(28))
        memory.meet(MAIN)
        same = [memory.view(device) for device in range(4) if device // 2 != node]
        return all(map(torch.equal, foreign, same))

    assert on_every_device(4, alone) == [True, True, False, False]  # node 0 wrote in its own arenas alone


CASES = [
    UNEVEN,
    UNEVEN.but(model=nets.Choosy, accumulate="slots"),
    UNEVEN.but(per_node=1),
    EVEN.but(sync="collective"),
    EVEN.but(sync="deferred", accumulate="slots", model=nets.Choosy),
    BY_UNIT.but(model=nets.Choosy),
    BY_UNIT.but(per_node=1, accumulate="slots"),
    BY_UNIT.but(per_node=4),
    OVER_NETWORK,
    OVER_NETWORK.but(model=nets.Narrow, reshard=False),
]


@pytest.mark.by_default(6)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_one_process(pools, case):
    expected = work.reference(case)
    assert max(work.error(found, expected) for found in pools(4).run(work.gradients, case)) <= BOUND


@pytest.mark.parametrize("sync", ["on-demand", pytest.param("collective", marks=pytest.mark.slow)])
def test_training_equals_training_under_full_sharding(pools, sync):
    case = EVEN.but(sync=sync, model=nets.Choosy)
    hybrid, full = (pools(4).run(work.trained, c, 4)[0] for c in (case, case.but(per_node=None)))
    assert work.error(hybrid, full) <= 1e-4
    assert work.error(hybrid, dict(case.fresh().named_parameters())) > 0.02


@pytest.mark.parametrize("case", [BY_UNIT.but(accumulate="slots"), pytest.param(OVER_NETWORK, marks=pytest.mark.slow)])
def test_unit_by_unit_training_has_the_bits_of_hybrid_sharding(pools, case):
    """The same sums in the same order: only when weights come is another matter."""
    one, other = (pools(4).run(work.trained, c, 3)[0] for c in (case, case.but(far="each")))
    assert all(torch.equal(one[name], value) for name, value in other.items())


@pytest.mark.parametrize("options", [HYBRID, HYBRID | EVENLY, HYBRID | {"sync": "deferred"}, HIERARCHICAL])
def test_threads_do_the_same(options):
    options = {"sync": "on-demand"} | options
    counts = (4, 1, 2, 0) if options["sync"] == "on-demand" else (2, 2, 2, 2)
    assert worst(job_for(minibatch(*counts), **options)) <= BOUND
    ours, full = (
        on_threads(job_for(*[minibatch(*counts)] * 4, **each), trained) for each in (options, {"sync": options["sync"]})
    )
    for mine in ours:
        assert all(torch.allclose(weight, full[0][name], atol=1e-5, rtol=0) for name, weight in mine.items())


@pytest.mark.by_default(3)
@pytest.mark.parametrize("backend", ["shm", "threads"])
@pytest.mark.parametrize(
    ("sync", "recipe"), [("on-demand", "hybrid"), ("collective", "hybrid"), ("on-demand", "hierarchical")]
)
def test_the_timeline_has_every_step_of_the_prediction_in_its_order(pools, sync, backend, recipe):
    file = file_of((2, 1, 2, 2), (2, 2, 0, 2)) if recipe == "hierarchical" else file_of(*[(2, 2, 2, 2)] * 2)
    job = job_of(file, sync=sync, backend=backend, timeout=30.0, **RECIPES[recipe])
    every = pools(4).run(shm_records, job) if backend == "shm" else on_threads(job, recorded)
    line = run.assembled(file, job, [run.block_of(n, file.schedules[n], job, [d[n] for d in every]) for n in range(2)])
    assert (line.about.recipe, line.about.nodes) == (job.cost.ran, 2)
    steps = line.blocks[0].program.steps
    assert steps == job.cost.program(2).steps  # what a simulation of this cost runs
    between = [i for i, s in enumerate(steps) if s.kind in ("gather", "push") and s.microbatch == EVERY]
    between += [i for i, s in enumerate(steps) if s.lane == NODES]
    assert len(between) >= 2
    for n in range(2):
        asked, had = as_block([device[n] for device in every])
        assert (had[between] > asked[between]).all()  # not passed in no time, by who has no microbatch neither
        for i, step in enumerate(steps):
            assert all((asked[i] >= had[need] - 1e-4).all() for need in step.after), (i, step)
            assert not step.meets or (had[i] >= asked[i].max() - 1e-4).all()


UNITS = [UnitShape("a", 37, 37, torch.float32), UnitShape("c", 64, 64, torch.bfloat16)]


def crossed(rank, times):
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
        if arena.offer_sums():
            arena.meet()
        arena.sum_nodes()
        assert [arena.gradients(u).unique().tolist() for u in range(len(UNITS))] == [[4.0 * times]] * len(UNITS)
    log = [what for what, *_ in memory.library.log]
    memory.meet(MAIN)
    memory.close()
    assert rank in memory.every_near[rank]
    return log.count("get_nbi"), log.count("quiet")


def test_each_remote_shard_crosses_the_network_once_per_node_however_often_it_is_gathered(pools):
    """And so does each sum of a shard. One counterpart has them, in two minibatches."""
    for asked, waited in pools(4).run(crossed, 3):
        assert asked == waited == 2 * len(UNITS) * 2


@pytest.mark.by_default(2)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("place", ["forward", "after a meeting"])
def test_a_killed_device_is_named_by_all_others(tmp_path, place, recipe):
    job = job_of(file_of(*[(2, 2, 2, 2)] * 4), sync="on-demand", timeout=30.0, **RECIPES[recipe])
    ended = faults.run(faults.training, tmp_path / "run", job, place, faults.KILL, devices=4)
    assert ended.code == 1
    faults.named(ended)


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


FILE = file_of((1, 1, 1, 1))
REFUSED = [
    {"sharding": "hybrid"},
    {"devices_per_node": 2},
    HYBRID | {"devices_per_node": 3},
    {"far": "hierarchical"},
    {"context": 2},
]


def refused(_rank):
    by_unit = Case((1, 1), far="hierarchical")
    cases = by_unit, by_unit.but(far="hierachical"), by_unit.but(per_node=1, sync="collective")
    return [work.refused(lambda case=case: work.gradients(0, case)) for case in cases]


def test_nodes_that_cannot_be_are_refused(pools):
    for asked in REFUSED:
        with pytest.raises(InputError):
            job_of(FILE, sync="on-demand", **asked)
    with pytest.raises(InputError):
        run.check(FILE, replace(job_of(FILE, sync="collective", **HYBRID), backend=backends.chosen("torch")))
    with pytest.raises(InputError):
        Arena(ThreadMemory(Team(1), 0), [], "locked", 2)
    assert pools(2).run(refused) == [[True] * 3] * 2


def test_one_node_is_full_sharding():
    assert job_of(FILE, sync="on-demand", sharding="hybrid", devices_per_node=4).program(2) == shm_job(FILE).program(2)
    for sync, devices_per_node in (("collective", 2), ("on-demand", 4)):
        usual = job_of(FILE, sync=sync, far="hierarchical", devices_per_node=devices_per_node)
        assert usual.recipe.far == "each"
        assert usual.program(2) == job_of(FILE, sync=sync).program(2)
