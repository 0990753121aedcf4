"""How a step is sharded where nobody says: one rule, which never recommends what does not fit."""

from dataclasses import replace
from math import inf

import pytest

from odcsim import ask, compare, load
from odcsim.decide import limit, room, sharding
from odcsim.decide.asking import question_by, setting_of
from odcsim.decide.comparison import fixed
from odcsim.program import SIDES
from odcsim.recipe import BY_RULE, Recipe
from odcsim.results import capacity

CHAT = "uniform:min=500,max=4000,samples=400"
TRACE = load(CHAT)
SMALL = {"gpu": "h100", "minibatch": 2, "minibatches": 2, "max_tokens": 6000}
PAIRS = [("lb-micro", "collective"), ("lb-micro", "on-demand"), ("lb-robust", "on-demand")]
TIGHT = {"gpu": "h100", "devices": 16, "minibatch": 4, "minibatches": 2}  # for a model of 14B: hybrid leaves less room
SQUEEZED = "deepcoder-rl", "r1-distill-qwen-14b"


def setting(model="qwen3-8b", devices=16, **more):
    return ask(TRACE, model, devices=devices, **SMALL | more)


@pytest.mark.parametrize(("model", "more", "how"), [
    ("qwen3-8b", {"devices": 8}, "full"),  # one node
    ("qwen3-8b", {}, "hybrid"),
    ("qwen2.5-32b", {}, "full"),
    ("qwen3-8b", {"devices": 12}, "full"),
    ("qwen3-8b", {"trainer": "slime"}, "full"),
])  # fmt: skip
def test_on_several_nodes_that_hold_it_it_is_hybrid_for_all_rows(model, more, how):
    """Where that is no choice it is full and says why; on one node it is full to the last bit."""
    usual, chosen = setting(model, **more), setting(model, **more, sharding=how)
    assert replace(usual, sharded_by="") == chosen
    assert fixed(usual).get("sharding_because", "") == usual.sharded_by
    assert (usual.sharded_by == sharding.USUAL) == (how == "hybrid")
    assert (usual.sharded_by == "") == (usual.cost.cluster.nodes == 1)
    rows = compare(usual, doubted=False).rows
    assert rows == compare(chosen, doubted=False).rows
    assert {row.recipe.sharding for row in rows} == {how}
    assert [Recipe(sharding=one).on(4).sharding for one in (BY_RULE, "hybrid")] == ["full", "hybrid"]


@pytest.mark.drawn(10)
@pytest.mark.parametrize("limit", [6000, 60_000])
@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-14b", "qwen2.5-32b", "llama-3.1-70b"])
@pytest.mark.parametrize("gpu", ["a100-40gb", "h100", "b200"])
def test_it_never_takes_what_does_not_fit_over_what_does(gpu, model, limit):
    """Of both sides, with every minibatch's own plans."""
    asks = [setting(model, gpu=gpu, max_tokens=limit, **how) for how in ({}, {"sharding": "full"})]
    usual, full = (compare(one, among=PAIRS, doubted=False) for one in asks)
    for ours, theirs in zip(usual.rows, full.rows, strict=True):
        assert capacity.level(ours) <= capacity.level(theirs)


@pytest.mark.parametrize("recompute", ["full", "none"])
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen3-8b"])
def test_no_side_takes_what_is_worse_for_it_than_full_at_the_edges_of_memory(model, recompute):
    """On GPUs that have what one side needs, or that plus what makes it tight, and a byte more or less."""
    cost = setting(model, recompute=recompute).cost.by(sharding=BY_RULE)
    tokens, longest = TRACE.fullest, TRACE.longest
    chosen = set()
    for how in ("hybrid", "full"):
        for side in SIDES:
            need = room.needed(room.under(cost.by(sharding=how), side), tokens, longest).total
            for memory in (least + byte for least in (need, need / capacity.FILLED) for byte in (-1, 1)):
                on = replace(cost, cluster=replace(cost.cluster, memory_bytes=memory))
                ours, theirs = sharding.choose(on, tokens, longest)[0], on.by(sharding="full")
                chosen.add(ours.recipe.sharding)
                for each in SIDES:
                    assert level(ours, each) <= level(theirs, each), (how, side, memory, each)
    assert chosen == {"hybrid", "full"}


def level(cost, side):
    total = room.needed(room.under(cost, side), TRACE.fullest, TRACE.longest).total
    return capacity.level(capacity.Need(total, cost.cluster.memory_bytes))


def test_a_run_that_exists_is_taken_to_have_been_full():
    question = question_by({"trace": TRACE, "model": "qwen3-8b", "devices": 16, **SMALL})
    assert setting_of(sharding.as_ran(question)) == setting(sharding="full")
    assert sharding.of_run(setting()) == setting(sharding="full")
    said = replace(question, recipe=Recipe(sharding="hybrid"))
    assert setting_of(sharding.as_ran(said)) == setting(sharding="hybrid")
    assert sharding.of_run(setting(sharding="hybrid")) == setting(sharding="hybrid")


def test_what_passes_between_two_nodes_of_eight():
    """In GB of one GPU, for a model of 8B: behind cards of 1 GB/s a second is one."""
    cost = setting().cost
    plain = {"link_bandwidth": inf, "latency": 0.0, "nic_share": 1.0, "one_sided_slowdown": 1.0}
    cluster = replace(cost.cluster, nic_bandwidth=1e9, **plain)
    weights, gradients = 2 * cost.model.parameters, 4 * cost.model.parameters
    program = cost.by(sharding="full").program(1)
    gathers = sum(s.kind == "gather" and program.leaves_node(s) for s in program.steps)
    times = (gathers - 1) / cost.model.layers  # the root is gathered once
    assert times == 2
    assert times * cluster.one_sided(weights, 16) == pytest.approx(16.4, abs=0.05)  # of each microbatch
    once = [cluster.exchange(size, collective=False) for size in (weights, gradients)]
    assert sum(once) == pytest.approx(3.07, abs=0.05)  # of a minibatch, however many microbatches it has
    hybrid = cost.by(sharding="hybrid").program(5)
    assert sum(hybrid.leaves_node(step) for step in hybrid.steps) == 2


@pytest.mark.parametrize("devices", [16, 32])
@pytest.mark.parametrize("gpu", ["h100", "a100"])
@pytest.mark.parametrize("nic", [25e9 / 8, None])
def test_no_side_is_left_behind_by_the_room_that_the_rule_leaves_it(gpu, devices, nic):
    """Neither loses more over its own best than it would by the other sharding, to a percent."""
    every = {how: sides(gpu, devices, nic, how) for how in (BY_RULE, "full", "hybrid")}
    best = [min(seconds) for seconds in zip(*every.values(), strict=True)]
    lost = {how: max(a / b for a, b in zip(seconds, best, strict=True)) for how, seconds in every.items()}
    assert lost[BY_RULE] <= 1.01 * min(lost["full"], lost["hybrid"]) + 1e-9


def sides(gpu, devices, nic, how):
    known = {"trace": SQUEEZED[0], "model": SQUEEZED[1], "recipe": Recipe(sharding=how)}
    one = setting_of(question_by(known | TIGHT | {"gpu": gpu, "devices": devices}), limited=False)
    cluster = replace(one.cost.cluster, nic_bandwidth=nic) if nic else one.cost.cluster
    found = sharding.with_limit(replace(one, cost=replace(one.cost, cluster=cluster)))
    return [seconds[0] for seconds in limit.seconds(found, [found.limit])]


def test_where_hybrid_leaves_a_side_too_little_room_it_is_full_and_else_stays():
    asked = load(SQUEEZED[0]), SQUEEZED[1]
    usual, full, hybrid = (ask(*asked, **TIGHT, **how) for how in ({}, {"sharding": "full"}, {"sharding": "hybrid"}))
    assert replace(usual, sharded_by="") == full
    assert usual.sharded_by not in ("", sharding.USUAL)
    assert (hybrid.cost.sharded, hybrid.sharded_by) == ("hybrid", "")
    assert ask(TRACE, "qwen2.5-1.5b", **TIGHT).sharded_by == sharding.USUAL
