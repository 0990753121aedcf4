"""Laws of nodes and of collectives: hybrid sharding with an exchange at the end or layer by layer, hierarchical
transfers, and collectives at full strength."""

from dataclasses import fields, replace

import numpy as np
import pytest
from executed import EXECUTORS, by
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BETWEEN, PREFETCHES, SYNCS, TRANSFERS, schedules

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.catalog.estimates import memory
from odcsim.catalog.fits import estimate
from odcsim.cluster import Cluster, cluster_of
from odcsim.cost import Cost, Load
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors.simulation import simulate, usage
from odcsim.profile import Timing
from odcsim.program import EVERY, NODES, ROOT, program, sync_named
from odcsim.recipe import Recipe
from odcsim.results import validation
from odcsim.schedule import Header, Schedule, ScheduleFile

A100 = catalog.gpu("a100")
MODEL = catalog.model("r1-distill-qwen-14b")
LAYERED = catalog.model("llama-3.1-8b")
NAMES = ("r1-distill-qwen-1.5b", "r1-distill-qwen-32b", "qwen3-30b-a3b")
MEETING = ("collective", "deferred")
sizes = st.tuples(st.integers(1, 5), st.integers(1, 4))  # layers and microbatches


def cost(devices: int, per_node: int, sharding: str = "hybrid", *, model=MODEL, recipe=None, **changes) -> Cost:
    cluster = replace(cluster_of(A100, devices, per_node), **changes)
    return Cost(model, estimate(model, A100, devices), cluster, recipe or Recipe(sharding=sharding))


def on_nodes(setting, per_node: int) -> Cost:
    cluster = replace(setting.cost.cluster, devices_per_node=per_node, nics_per_node=per_node)
    return replace(setting.cost, cluster=cluster)


def even(length: int, devices: int, microbatches: int = 1) -> Schedule:
    count = devices * microbatches
    order = [range(d, count, devices) for d in range(devices)]
    return Schedule.of((length,) * count, tuple(tuple((i,) for i in device) for device in order))


def rows(how: Cost, sync: str, found: Schedule) -> dict[str, float]:
    """Seconds of each kind of step on device 0."""
    steps = program(how.model.layers, max(found.microbatches), sync, sharding=how.sharded)
    seconds = how.durations(steps, Load.of(how.model, [found]))
    return {what: seconds[i, 0, 0] for i, (what, _) in enumerate(steps.durations)}


def span(how: Cost, found: Schedule | None = None, executor: str = "analytic") -> float:
    schedule = found or even(8000, how.cluster.gpus, 2)
    with by(executor):
        return float(usage([schedule], how).makespan[0])


# Hybrid sharding, with an exchange at the end


@settings(max_examples=30)
@given(found=schedules(4), per_node=st.integers(4, 9), executor=st.sampled_from(EXECUTORS), sync=st.sampled_from(SYNCS))
def test_on_one_node_hybrid_is_full_to_the_last_bit(setting, found, per_node, executor, sync):
    found = found if not sync_named(sync).meets else even(found.lengths[0], 4, 2)
    hows = [on_nodes(setting, per_node).by(sync=sync, sharding=s) for s in ("full", "hybrid")]
    with by(executor):
        full, hybrid = (usage([found], how) for how in hows)
    assert all(np.array_equal(getattr(full, f.name), getattr(hybrid, f.name)) for f in fields(full))
    file = ScheduleFile(Header("native", "m", "a test", 10**6, 4, 0), (found,)).sealed()
    one, other = (simulate(file, how) for how in hows)
    assert (one.about, one.blocks[0].program) == (other.about, other.blocks[0].program)


nodes_of = st.tuples(st.integers(2, 5), st.sampled_from([1, 2, 8]))


@given(st.sampled_from(NAMES), st.sampled_from(SYNCS), st.integers(1, 4), nodes_of, st.sampled_from(PREFETCHES))
def test_hybrid_never_moves_more_bytes_between_nodes_than_full(name, sync, microbatches, sizes, prefetch):
    """Seconds are bytes where a network card takes one for each and nothing else takes any, factors included."""
    model, (nodes, per_node) = catalog.model(name), sizes
    free = {"one_sided_slowdown": 0.0, "latency": 0.0, "hop": 0.0, "nic_share": 1.0}
    cluster = Cluster(nodes * per_node, per_node, 1e30, 1.0, per_node, **free)
    moved = []
    for sharding in ("hybrid", "full"):
        how = Cost(model, estimate(model, A100, cluster.gpus), cluster, Recipe(sharding=sharding))
        steps = program(model.layers, microbatches, sync, prefetch, sharding)
        seconds = how.durations(steps, Load.of(how.model, [even(10, cluster.gpus, microbatches)]))[:, 0, 0]
        moved.append(sum(seconds[s.duration] for s in steps.steps if steps.leaves_node(s)))
    assert moved[0] <= moved[1]
    # Every parameter once in bf16 and its gradient once in fp32, for the part that other nodes have.
    assert moved[0] == pytest.approx(6 * model.parameters * (nodes - 1) / nodes / per_node)


@given(st.sampled_from(SYNCS), st.integers(2, 4), st.sampled_from([2, 4, 8]))
def test_layers_move_as_on_a_node_alone(sync, nodes, per_node):
    """And transfers that were measured with a node's devices hold inside it."""
    found = rows(cost(nodes * per_node, per_node), sync, even(10, nodes * per_node))
    alone = rows(cost(per_node, per_node, "full"), sync, even(10, per_node))
    assert {what: found[what] for what in TRANSFERS} == {what: alone[what] for what in TRANSFERS}
    fit = replace(fits.published(NAMES[0], "a100"), timings=(Timing("gather", per_node, 0.5, 0.0),))
    for sharding in ("hybrid", "full"):
        cluster = cluster_of(A100, nodes * per_node, per_node)
        how = Cost(catalog.model(NAMES[0]), fit, cluster, Recipe(sharding=sharding))
        took = rows(how, "on-demand", even(10, nodes * per_node))["gather layer"]
        assert (took == 0.5) == (sharding == "hybrid")


def test_between_nodes_one_sided_transfers_are_not_slower_where_no_device_pulls_what_another_does():
    one_sided, ring = (rows(cost(16, 8), sync, even(10, 16)) for sync in ("on-demand", "collective"))
    assert [one_sided[what] for what in BETWEEN] == pytest.approx([ring[what] - 2e-6 for what in BETWEEN])
    # 14.8 billion gradients of 4 bytes; half of them are of the other node, and come in through eight cards.
    how = cost(16, 8).cluster
    expected = 4 * MODEL.parameters / 2 / 8 / (A100.nic_bandwidth * how.nic_share)
    assert ring["push between nodes"] == pytest.approx(expected + how.latency + how.hop)
    assert ring["gather between nodes"] == pytest.approx(expected / 2 + how.latency + how.hop)


def test_a_node_with_fewer_cards_takes_as_many_times_as_long_between_nodes_and_no_longer_inside():
    """Only des shares cards; there eight pulls through two cards take what a ring takes over both."""
    times = {}
    for nics in (8, 2):
        how = cost(16, 8, nics_per_node=nics).by(sync="on-demand")
        file = ScheduleFile(Header("native", MODEL.name, "a test", 10**6, 16, 0), (even(5000, 16, 2),)).sealed()
        with by("des"):
            block = simulate(file, how).blocks[0]
        took = block.had - block.asked
        times[nics] = {block.program.durations[s.duration][0]: took[i, 0, 0] for i, s in enumerate(block.program.steps)}
    for what, factor in [*((t, 1) for t in TRANSFERS), *((b, 4) for b in BETWEEN)]:
        assert times[2][what] == pytest.approx(factor * times[8][what], rel=1e-3 if factor > 1 else 1e-6), what


@given(st.integers(1, 4), st.sampled_from([1, 2, 8]), st.sampled_from(SYNCS))
def test_its_price_in_memory(nodes, per_node, sync):
    """Parameters in bf16 and fp32 sums of gradients over a node alone; optimizer states stay where they are."""
    devices = nodes * per_node
    full, hybrid = (memory.estimate(MODEL, devices, 1000, Recipe(sync), holders) for holders in (devices, per_node))
    assert hybrid.weights + hybrid.moments == full.weights + full.moments == 12 * MODEL.parameters / devices
    share = MODEL.parameters / per_node - MODEL.parameters / devices
    # Under collectives nobody publishes: the parameters of a node come anew.
    anew = 0 if sync == "on-demand" or nodes == 1 else 2 * MODEL.parameters / devices
    assert hybrid.total - full.total == pytest.approx(6 * share + anew)
    assert memory.over_full(MODEL, devices, Recipe(sync), per_node) == pytest.approx(6 * share + anew)
    # Where nodes exchange layer by layer states are whole in every one: twelve bytes of a parameter, and four of its
    # gradient's sum; nothing beside them.
    recipe = Recipe("collective", exchange="layers")
    full, hybrid = (memory.estimate(MODEL, devices, 1 << 18, recipe, holders) for holders in (0, per_node))
    assert hybrid.weights + hybrid.moments == pytest.approx(full.weights + full.moments + 12 * share)
    assert hybrid.gradients - full.gradients == pytest.approx(4 * share)
    assert (hybrid.in_node, hybrid.total - full.total) == (0, pytest.approx(16 * share))
    assert memory.over_full(MODEL, devices, recipe, per_node) == pytest.approx(16 * share)


def test_what_is_no_hybrid_sharding_or_another_than_was_predicted_is_refused(setting, schedules):
    for wrong in ((12, 8), (16, 8, "hybird")):
        with pytest.raises(InputError):
            cost(*wrong)
    assert cost(12, 8, "full").holders == 12
    hybrid, *others = (
        simulate(schedules, on_nodes(setting, per_node).by(sharding=sharding))
        for sharding, per_node in (("hybrid", 2), ("full", 2), ("hybrid", 1))
    )
    for other in others:
        with pytest.raises(InputError):
            validation.validate(hybrid, [other])


@pytest.mark.parametrize("max_tokens", [1000, 4000])
def test_a_row_is_held_against_full_sharding_with_the_plans_for_it(max_tokens):
    """Its root takes longer to gather, so a microbatch costs more, and pool leaves fewer of them to the queue."""
    words = {"gpu": "h100", "devices": 16, "minibatch": 4, "minibatches": 1, "max_tokens": max_tokens}
    asked = ask("uniform:min=200,max=1000", NAMES[0], **words)
    how = replace(asked.cost.by(sharding="hybrid"), cluster=replace(asked.cost.cluster, nic_bandwidth=12.5e9 / 8))
    setting = replace(asked, cost=how)
    full = replace(setting, cost=how.by(sharding="full"))
    found = compare(setting, memory_limit=A100.memory_bytes)
    assert {row.recipe.sharding for row in found.rows} == {"hybrid"}
    for row in found.rows:
        if row.balancer in ("lb-micro", "pool"):
            seconds = usage(plan(full, row.balancer).schedules, full.cost.by(sync=row.sync)).makespan.sum()
            assert row.over_full == pytest.approx(seconds / row.makespan_seconds)
    assert max(row.over_full for row in found.rows) > 1.5
    if max_tokens == 4000:
        assert len(plan(full, "pool").schedules[0].queue) < len(plan(setting, "pool").schedules[0].queue)


# An exchange layer by layer beside backward, as FSDP2's collectives have it: the rival


def exchanging(exchange: str, **network) -> Cost:
    recipe = Recipe("collective", sharding="hybrid", exchange=exchange)
    return cost(16, 4, model=LAYERED, recipe=recipe, **network)


@given(sizes, st.sampled_from(MEETING), st.sampled_from(PREFETCHES))
def test_each_unit_is_summed_once_when_the_last_microbatch_has_pushed_it(size, sync, prefetch):
    """Who does not meet exchanges at the end."""
    p = program(*size, sync, prefetch, "hybrid", "layers")
    sums = [(i, s) for i, s in enumerate(p.steps) if s.lane == NODES]
    assert [s.unit for _, s in sums] == [*range(p.layers, 0, -1), ROOT]
    for i, s in sums:
        [push] = s.after
        pushed = p.steps[push]
        assert s.meets
        assert p.leaves_node(s)
        assert (pushed.kind, pushed.unit, pushed.microbatch, push < i) == ("push", s.unit, size[1] - 1, True)
    [optimizer] = [s for s in p.steps if s.kind == "optimizer"]
    assert sums[-1][0] in optimizer.after
    assert [s.kind for s in p.steps if s.microbatch == EVERY] == ["meeting", "optimizer"]
    for sharding in ("full", "hybrid"):
        given_so, at_end = (program(*size, "on-demand", prefetch, sharding, e) for e in ("layers", "end"))
        assert given_so == at_end
    assert program(*size, "collective", prefetch, "full", "layers").exchange == "end"


def test_what_backward_hides_costs_nothing_but_the_roots():
    """Where nothing hides it, sums move as often as bytes say: reduced and gathered again, twice the bytes of a push
    between nodes, over all layers. Every node steps all."""
    free, busy = (span(exchanging("layers", nic_bandwidth=nic)) for nic in (1e15, 50e9))
    fixed = exchanging("layers", nic_bandwidth=50e9).transfers(one_sided=False)
    assert busy - free == pytest.approx(fixed["sum root"], rel=0.05)
    assert span(exchanging("end", nic_bandwidth=50e9)) > busy
    slow = exchanging("layers", nic_bandwidth=1e7)
    fixed = slow.transfers(one_sided=False)
    moved = LAYERED.layers * fixed["sum layer"] + fixed["sum root"]
    assert moved == pytest.approx(2 * fixed["push between nodes"], rel=1e-3)
    assert span(slow) == pytest.approx(moved, rel=0.05)
    layers, end = (exchanging(e).transfers(one_sided=False)["optimizer"] for e in ("layers", "end"))
    assert layers == 4 * end


def test_a_comparison_has_the_rival_exchange_as_fsdp2_does():
    """So hybrid collectives may be faster than full ones on a slow network, which they were measured to be."""
    setting = ask("longalign", LAYERED.name, gpu="a100", devices=128, minibatch=1, minibatches=1, sharding="hybrid")
    cluster = replace(setting.cost.cluster, nic_bandwidth=50e9 / 8)
    found = compare(replace(setting, cost=replace(setting.cost, cluster=cluster)))
    rival = found.row("lb-micro", "collective")
    assert (rival.recipe.exchange, found.row("lb-mini", "on-demand").recipe.exchange) == ("layers", "end")
    assert rival.over_full > 1


# Hierarchical transfers: each device of a node brings in its part of what is far, once, and the node keeps it


def hierarchical(layers: int, microbatches: int, prefetch: str = "fsdp2"):
    return program(layers, microbatches, "on-demand", prefetch, "hybrid", hierarchical=True)


def bringing(far: str, devices: int = 16, per_node: int = 8, sync: str = "on-demand", **network) -> Cost:
    return cost(devices, per_node, recipe=Recipe(sync, far=far), **network)


@given(sizes, st.sampled_from(PREFETCHES))
def test_each_unit_is_brought_in_once_and_its_first_forward_waits_for_it(size, prefetch):
    p, full = hierarchical(*size, prefetch), program(*size, "on-demand", prefetch)
    brought = {s.unit: i for i, s in enumerate(p.steps) if s.lane == NODES}
    assert list(brought) == list(range(p.layers + 1))  # in the order of use
    assert p.begin == len(brought)
    for unit, i in brought.items():
        assert (p.steps[i].after, p.steps[i].meets) == ((), False)
        assert p.leaves_node(p.steps[i])
        after = [s for s in p.steps if i in s.after]
        assert [(s.kind, s.microbatch, s.unit) for s in after] == [("gather", 0, unit), ("compute", 0, unit)]
    inside = p.steps[p.begin : p.end]
    assert not any(p.leaves_node(s) for s in inside)
    for mine, usual in zip(inside, full.steps[: full.end], strict=True):
        assert {n - p.begin for n in mine.after if n >= p.begin} == set(usual.after)
        assert replace(mine, after=(), duration=0) == replace(usual, after=(), duration=0)
    assert [s.kind for s in p.steps[p.end :]] == ["meeting", "push", "optimizer", "publish", "meeting"]
    assert {s.microbatch for s in p.steps[p.end :]} == {EVERY}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_queues_entry_waits_for_nothing_that_its_device_has_waited_for(executor):
    """The network is slow: were it waited for again, device 0 would be back in time for an entry."""
    lengths = (60000, 1000, 1000, 1000, 1000, 1000)
    queued = Schedule.of(lengths, (((0,),), ((1,),)), queue=((2,), (3,), (4,), (5,)))
    planned = Schedule.of(lengths, (((0,),), ((1,), (2,), (3,), (4,), (5,))))
    how = bringing("hierarchical", 2, 1, nic_bandwidth=1e9)
    assert span(how, queued, executor) == pytest.approx(span(how, planned, executor), rel=1e-12)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_on_one_node_and_where_devices_meet_nothing_changes(sync, executor):
    found = Schedule.of((9000, 3000) * 8, tuple(((2 * d,), (2 * d + 1,)) for d in range(8)))
    one, other = (span(bringing(far, 8, 8, sync), found, executor) for far in ("each", "hierarchical"))
    assert one == other
    two = [bringing(far, 8, 4, sync) for far in ("each", "hierarchical")]
    assert (two[0].ran == two[1].ran) == (sync != "on-demand")
    assert (two[1].program(1).begin > 0) == (sync == "on-demand")
    assert two[1].ran == two[1].ran.on(2)  # as it is run, it is run


@settings(max_examples=20)
@given(found=schedules(8, queued=True), nic=st.floats(1e9, 1e12))
def test_it_is_never_slower_than_hybrid_sharding(found, nic):
    """The same bytes between nodes, of which none is waited for any longer. A queue runs alike in both executors."""
    how = bringing("hierarchical", 8, 4, nic_bandwidth=nic, latency=0.0)
    alike, hybrid = found.dealt(found.flat), replace(how, recipe=Recipe(sharding="hybrid"))
    assert span(how, alike) <= span(hybrid, alike) * (1 + 1e-9)
    found_by = {}
    for executor in EXECUTORS:
        with by(executor):
            found_by[executor] = usage([found], how)
    one, other = found_by.values()
    assert np.allclose(one.makespan, other.makespan, rtol=1e-12)
    assert np.allclose(one.gather, other.gather, rtol=1e-9)


def test_a_unit_enters_a_node_once_through_all_its_cards():
    """Then it is gathered from the node, as on a node alone. A comparison has it for on-demand alone."""
    free = {"latency": 0.0, "nic_share": 1.0}
    hows = bringing("hierarchical", **free), bringing("each", **free), bringing("each", 8, 8, **free)
    far, each, alone = (how.transfers(one_sided=True) for how in hows)
    assert far["bring layer"] == pytest.approx(2 * MODEL.layer_parameters / 2 / (8 * hows[0].cluster.nic_bandwidth))
    assert far["gather layer"] == alone["gather layer"]
    assert 8 * far["bring layer"] <= each["gather layer"] * (1 + 1e-9)
    slow = {"gpu": "a100", "devices": 16, "minibatch": 2, "minibatches": 2, "sharding": "full"}
    usual, found = (compare(ask("aime-rl", MODEL.name, **slow, **more)) for more in ({}, {"far": "hierarchical"}))
    for row in found.rows:
        before = usual.row(row.balancer, row.sync)
        if row.sync == "on-demand":
            assert row.over_full == pytest.approx(before.makespan_seconds / row.makespan_seconds)
            assert row.memory_terms["in_node"] > before.memory_terms["in_node"] == 0
        else:
            assert row == replace(before, speedup_best_collective=row.speedup_best_collective)


# Collectives at full strength: two streams, copy engines, and layers that stay whole from forward to backward

STRONGER = ({"streams": "two"}, {"reshard": False}, {"streams": "two", "reshard": False}, {"copies": "engines"})


@pytest.fixture(scope="module")
def asked():
    """Transfers between two nodes take about as long as compute, so that it matters how they are run."""
    words = {"gpu": "h100", "devices": 16, "minibatch": 2, "minibatches": 6, "max_tokens": 3000, "sharding": "full"}
    setting = ask("uniform:min=100,max=3000", "qwen3-0.6b", **words)
    cluster = setting.cost.cluster
    slow = replace(cluster, nic_bandwidth=cluster.nic_bandwidth / 20)
    return replace(setting, cost=replace(setting.cost, cluster=slow))


@pytest.mark.parametrize("sync", SYNCS)
def test_nothing_is_slower_that_waits_for_less(asked, sync):
    """Collectives are faster where transfers show; on-demand has two streams anyway."""
    found = plan(asked, "lb-micro").schedules
    hows = [asked.cost.by(**choices).by(sync=sync) for choices in ({}, *STRONGER)]
    usual, *stronger = (usage(found, how).makespan for how in hows)
    assert all((spans <= usual * (1 + 1e-12)).all() for spans in stronger)
    if sync == "collective":
        assert all(spans.sum() < 0.999 * usual.sum() for spans in stronger[:3])
    if sync == "on-demand":
        assert (stronger[0] == usual).all()


@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from(SYNCS), st.sampled_from(PREFETCHES))
def test_a_layer_that_stays_whole_is_gathered_once_and_all_else_stays(layers, microbatches, sync, prefetch):
    kept, usual = (program(layers, microbatches, sync, prefetch, reshard=reshard) for reshard in (False, True))
    once = [(m, unit) for m in range(microbatches) for unit in range(ROOT, layers + 1)]
    assert sorted((s.microbatch, s.unit) for s in kept.steps if s.kind == "gather") == once
    left = [(s.kind, s.lane, s.microbatch, s.unit, s.meets) for s in kept.steps if s.kind != "gather"]
    assert left == [(s.kind, s.lane, s.microbatch, s.unit, s.meets) for s in usual.steps if s.kind != "gather"]


def test_it_takes_the_room_of_all_layers(asked):
    model, recipe = asked.cost.model, asked.cost.by(sync="collective").recipe
    less, more = (memory.estimate(model, 16, 4096, replace(recipe, reshard=reshard)) for reshard in (True, False))
    assert more.unsharded == 2.0 * model.parameters
    extra = (model.layers - memory.LAYERS_GATHERED) * model.layer_parameters
    assert more.unsharded - less.unsharded == pytest.approx(2 * extra)
    assert more.total > less.total
    few = replace(asked, minibatches=2)
    strong, usual = (compare(replace(few, cost=few.cost.by(**choices))) for choices in (STRONGER[2], {}))
    for row, other in zip(strong.rows, usual.rows, strict=True):
        assert row.makespan_seconds <= other.makespan_seconds * (1 + 1e-12)
        assert row.memory_bytes > other.memory_bytes
