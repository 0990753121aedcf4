"""Laws of hybrid sharding: layers' transfers stay in a node, and what that costs between nodes and in memory."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import BETWEEN, PREFETCHES, SYNCS, TRANSFERS, schedules

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.catalog.estimates import memory
from odcsim.catalog.fits import estimate
from odcsim.cli import table
from odcsim.cluster import Cluster, cluster_of
from odcsim.cost import Cost
from odcsim.decide import answer, answer_words
from odcsim.decide.asking import ask
from odcsim.decide.comparison import Comparison, compare
from odcsim.decide.setting import Setting, plan
from odcsim.errors import InputError
from odcsim.executors.simulation import EXECUTORS, Simulation, simulate, usage
from odcsim.profile import Timing
from odcsim.program import program, sync_named
from odcsim.recipe import Recipe
from odcsim.results import metrics, validation
from odcsim.results.summary import Row
from odcsim.schedule import Header, Schedule, ScheduleFile

A100 = catalog.gpu("a100")
MODEL = catalog.model("r1-distill-qwen-14b")
NAMES = ("r1-distill-qwen-1.5b", "r1-distill-qwen-32b", "qwen3-30b-a3b")


def cost(devices: int, per_node: int, sharding: str = "hybrid", **changes) -> Cost:
    cluster = replace(cluster_of(A100, devices, per_node), **changes)
    return Cost(MODEL, estimate(MODEL, A100, devices), cluster, Recipe(sharding=sharding))


def even(length: int, devices: int, microbatches: int = 1) -> Schedule:
    count = devices * microbatches
    order = [range(d, count, devices) for d in range(devices)]
    return Schedule((length,) * count, tuple(tuple((i,) for i in device) for device in order))


def rows(how: Cost, sync: str, found: Schedule) -> dict[str, float]:
    """Seconds of each kind of step on device 0."""
    steps = program(how.model.layers, max(found.microbatches), sync, sharding=how.sharded)
    seconds = how.durations(steps, how.load([found]))
    return {what: seconds[i, 0, 0] for i, (what, _) in enumerate(steps.durations)}


@settings(max_examples=30)
@given(found=schedules(4), per_node=st.integers(4, 9), executor=st.sampled_from(EXECUTORS), sync=st.sampled_from(SYNCS))
def test_on_one_node_hybrid_is_full_to_the_last_bit(setting, found, per_node, executor, sync):
    one = replace(setting.cost.cluster, devices_per_node=per_node, nics_per_node=per_node)
    found = found if sync_named(sync).uneven else even(found.lengths[0], 4, 2)
    hows = [Simulation(replace(setting.cost, cluster=one), sync, executor, sharding=s) for s in ("full", "hybrid")]
    full, hybrid = (usage([found], how) for how in hows)
    assert all(np.array_equal(getattr(full, f.name), getattr(hybrid, f.name)) for f in fields(full))
    file = ScheduleFile(Header("native", "m", "a test", 10**6, 4, 0), (found,)).sealed()
    one, other = (simulate(file, how) for how in hows)
    assert one.about == other.about
    assert one.blocks[0].program == other.blocks[0].program


@given(
    st.sampled_from(NAMES),
    st.sampled_from(SYNCS),
    st.integers(1, 4),
    st.integers(2, 5),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(PREFETCHES),
)
def test_hybrid_never_moves_more_bytes_between_nodes_than_full(name, sync, microbatches, nodes, per_node, prefetch):
    """Seconds are bytes where a network card takes one for each and nothing else takes any, factors included."""
    model = catalog.model(name)
    free = {"one_sided_slowdown": 0.0, "latency": 0.0, "hop": 0.0, "nic_share": 1.0}
    cluster = Cluster(nodes * per_node, per_node, 1e30, 1.0, per_node, **free)
    moved = []
    for sharding in ("hybrid", "full"):
        how = Cost(model, estimate(model, A100, cluster.devices), cluster, Recipe(sharding=sharding))
        steps = program(model.layers, microbatches, sync, prefetch, sharding)
        seconds = how.durations(steps, how.load([even(10, cluster.devices, microbatches)]))[:, 0, 0]
        moved.append(sum(seconds[s.duration] for s in steps.steps if steps.leaves_node(s)))
    assert moved[0] <= moved[1]
    # Every parameter once in bf16 and its gradient once in fp32, for the part that other nodes have.
    assert moved[0] == pytest.approx(6 * model.parameters * (nodes - 1) / nodes / per_node)


@given(st.sampled_from(SYNCS), st.integers(2, 4), st.sampled_from([2, 4, 8]))
def test_layers_move_as_on_a_node_alone(sync, nodes, per_node):
    found = rows(cost(nodes * per_node, per_node), sync, even(10, nodes * per_node))
    alone = rows(cost(per_node, per_node, "full"), sync, even(10, per_node))
    assert {what: found[what] for what in TRANSFERS} == {what: alone[what] for what in TRANSFERS}


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
        how = Simulation(cost(16, 8, nics_per_node=nics), "on-demand", "des")
        file = ScheduleFile(Header("native", MODEL.name, "a test", 10**6, 16, 0), (even(5000, 16, 2),)).sealed()
        block = simulate(file, how).blocks[0]
        took = block.had - block.asked
        times[nics] = {block.program.durations[s.duration][0]: took[i, 0, 0] for i, s in enumerate(block.program.steps)}
    for what in TRANSFERS:
        assert times[2][what] == pytest.approx(times[8][what]), what
    for what in BETWEEN:
        assert times[2][what] == pytest.approx(4 * times[8][what], rel=1e-3), what


@pytest.mark.parametrize("sync", SYNCS)
def test_the_executors_agree_on_real_seconds_and_parts_add_up(setting, sync):
    file = plan(setting, "lb-micro")
    two = replace(setting.cost.cluster, devices_per_node=2, nics_per_node=2)
    how = replace(setting.cost, cluster=two).by(sharding="hybrid")
    fast, slow = (simulate(file, Simulation(how, sync, executor)) for executor in EXECUTORS)
    for one, other in zip(fast.blocks, slow.blocks, strict=True):
        assert np.array_equal(one.asked, other.asked)
        assert np.array_equal(one.had, other.had)
    found = metrics.usage(fast)
    total = found.compute + sum(getattr(found, part) for part in metrics.PARTS)
    np.testing.assert_allclose(total, 4 * found.makespan)
    # Both exchanges are exposed: nothing else goes on then.
    between = rows(how, sync, file.schedules[0])
    assert (found.push >= 4 * between["push between nodes"] * (1 - 1e-9)).all()
    assert (found.gather >= 4 * between["gather between nodes"] * (1 - 1e-9)).all()


def test_measured_transfers_of_a_nodes_devices_hold_inside_it():
    fit = replace(fits.published("r1-distill-qwen-1.5b", "a100"), timings=(Timing("gather", 4, 0.5, 0.0),))
    model = catalog.model("r1-distill-qwen-1.5b")
    for sharding, expected in (("hybrid", True), ("full", False)):
        found = rows(Cost(model, fit, cluster_of(A100, 8, 4), Recipe(sharding=sharding)), "on-demand", even(10, 8))
        assert (found["gather layer"] == 0.5) == expected


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


@given(st.integers(1, 4), st.sampled_from([1, 2, 8]))
def test_states_are_whole_in_every_node_where_nodes_exchange_layer_by_layer(nodes, per_node):
    """Twelve bytes of a parameter, and four of its gradient's sum; nothing beside them."""
    recipe = Recipe("collective", exchange="layers")
    full, hybrid = (memory.estimate(MODEL, nodes * per_node, 1 << 18, recipe, holders) for holders in (0, per_node))
    share = MODEL.parameters / per_node - MODEL.parameters / (nodes * per_node)
    states = [m.weights + m.moments for m in (full, hybrid)]
    assert states[1] - states[0] == pytest.approx(12 * share)
    assert hybrid.gradients - full.gradients == pytest.approx(4 * share)
    assert hybrid.in_node == 0
    assert hybrid.total - full.total == pytest.approx(16 * share)
    assert memory.over_full(MODEL, nodes * per_node, recipe, per_node) == pytest.approx(16 * share)


def test_what_is_no_hybrid_sharding_is_refused():
    with pytest.raises(InputError, match=r"hybrid on 12 devices in nodes of 8; give a multiple of a node's devices"):
        cost(12, 8)
    with pytest.raises(InputError, match="unknown sharding 'hybird'; did you mean 'hybrid'"):
        cost(16, 8, "hybird")
    assert cost(12, 8, "full").holders == 12


def test_a_prediction_under_another_sharding_or_other_nodes_is_refused(setting, schedules):
    def run(sharding: str, per_node: int):
        cluster = replace(setting.cost.cluster, devices_per_node=per_node, nics_per_node=per_node)
        return simulate(schedules, Simulation(replace(setting.cost, cluster=cluster), sharding=sharding))

    two, four, full = run("hybrid", 2), run("hybrid", 1), run("full", 2)
    with pytest.raises(InputError, match="sharding full is not the prediction's hybrid; predict with --sharding full"):
        validation.validate(two, [full])
    with pytest.raises(InputError, match="nodes 4 is not the prediction's 2"):
        validation.validate(two, [four])


@pytest.fixture(scope="module")
def on_two_nodes() -> Comparison:
    """Short samples, and a network of 100 Gbit/s a node: transfers take longer than compute."""
    asked = ask(
        "uniform:min=200,max=1000", NAMES[0], gpu="h100", devices=16, minibatch=4, minibatches=1, max_tokens=1000
    )
    cost = replace(asked.cost.by(sharding="hybrid"), cluster=replace(asked.cost.cluster, nic_bandwidth=12.5e9 / 8))
    return compare(replace(asked, cost=cost), memory_limit=A100.memory_bytes)


def test_rows_and_inputs_carry_it(on_two_nodes):
    assert on_two_nodes.as_json()["inputs"]["sharding"] == "hybrid"
    setting = on_two_nodes.setting
    for row in on_two_nodes.rows:
        assert row.sharding == "hybrid"
        if row.balancer == "lb-micro":
            assert row.over_full == pytest.approx(in_full(setting, row) / row.makespan_seconds)


def in_full(setting: Setting, row: Row) -> float:
    """Seconds of the row's balancer and sync where all is asked for under full sharding."""
    full = replace(setting, cost=setting.cost.by(sharding="full"))
    file = plan(full, row.balancer)
    return usage(file.schedules, Simulation(full.cost, row.sync, "analytic")).makespan.sum()


def test_full_sharding_is_held_against_with_the_plans_for_it(on_two_nodes):
    """Its root takes longer to gather, so a microbatch costs more and pool leaves fewer of them to the queue."""
    setting = replace(on_two_nodes.setting, max_tokens=4000)
    full = replace(setting, cost=setting.cost.by(sharding="full"))
    assert len(plan(full, "pool").schedules[0].queue) < len(plan(setting, "pool").schedules[0].queue)
    row = compare(setting).row("pool", "on-demand")
    assert row.over_full == pytest.approx(in_full(setting, row) / row.makespan_seconds)


def test_the_answer_tells_what_it_buys_and_what_it_costs(on_two_nodes, capsys):
    found = answer.answer(on_two_nodes)
    [told] = [s for s in answer_words.sentences(on_two_nodes, found) if "Hybrid" in s]
    here = on_two_nodes.setting.cost
    price = memory.over_full(here.model, 16, found.chosen.recipe, 8) / 1e9
    assert price > 6 / 16 * here.model.parameters / 1e9 - 0.01
    gain = (
        f"{found.chosen.over_full:.2f} times as fast as full sharding would, for {price:.1f} GB more memory per device."
    )
    assert found.chosen.over_full > 1.5
    full = min(r.makespan_seconds * r.over_full for r in on_two_nodes.rows if r.sync != "on-demand")
    assert told.startswith(
        f"Hybrid sharding runs {answer_words.named(found.chosen)} {gain} Full sharding's best row without"
    )
    assert told.endswith(f" takes {full / found.chosen.makespan_seconds:.2f} times as long.")
    tight = replace(
        on_two_nodes, rows=tuple(replace(r, memory_fits=False) for r in on_two_nodes.rows), memory_limit=1e9
    )
    leanest = min((r for r in tight.rows if r.sync != "on-demand"), key=lambda r: r.memory_bytes)
    needs, price = leanest.memory_bytes / 1e9, memory.over_full(here.model, 16, leanest.recipe, 8) / 1e9
    [misfit] = answer_words.misfit(tight, answer.answer(tight))
    assert (
        f"{needs:.0f} GB of memory per device, and one has 1 GB. Full sharding would need {needs - price:.0f}" in misfit
    )
    table.show_comparison(on_two_nodes, wide=True)
    printed = capsys.readouterr().out
    assert "16 x h100 in 2 nodes, hybrid sharding" in printed
    assert "over full sharding" in printed


def test_the_answer_tells_where_it_buys_nothing(on_two_nodes, setting):
    one = compare(replace(setting, cost=setting.cost.by(sharding="hybrid"), minibatches=1))
    assert {(r.sharding, r.over_full) for r in one.rows} == {("full", None)}
    assert "there is one node" in " ".join(answer_words.sentences(one, answer.answer(one)))
    slower = replace(on_two_nodes, rows=tuple(replace(r, over_full=0.97) for r in on_two_nodes.rows))
    assert "no faster here (0.97 times full sharding)" in " ".join(
        answer_words.sentences(slower, answer.answer(slower))
    )
