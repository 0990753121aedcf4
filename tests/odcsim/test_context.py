"""GPUs that share each sequence (context parallelism) against arithmetic by hand, published figures, brute force."""

from dataclasses import replace

import numpy as np
import pytest
from executed import EXECUTORS, by

import odcsim
from odcsim import InputError, Trace, catalog, compare
from odcsim.catalog.estimates import memory
from odcsim.catalog.fits import estimate
from odcsim.cluster import Cluster, cluster_of
from odcsim.cost import Cost, Load
from odcsim.decide import advice, room, search
from odcsim.decide.decision import NOTABLE
from odcsim.decide.levers import SHARED, levers
from odcsim.decide.setting import cost_of
from odcsim.executors.simulation import makespans, simulate, usage
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import ChosenRow
from odcsim.profile import Polynomial, Profile, ProfileBelow, Timing
from odcsim.recipe import AGAIN, USUAL, Recipe
from odcsim.schedule import Header, Schedule, ScheduleFile

MODEL, A100, LINK = catalog.model("llama-3.1-8b"), catalog.gpu("a100"), 100e9
ALONE = Polynomial(constant=1e-3, linear=1e-6, quadratic=1e-10, sample=1e-5)
PROFILE = Profile(MODEL.name, "a100", "calibrated", "by hand", ALONE, ALONE, ALONE, ALONE, recompute=True)
NODE = Cluster(8, 8, LINK, 25e9, 8, link_share=1.0, latency=1e-5, hop=1e-6)
KEYS = 8 * (128 + 128)  # elements of keys and values of a token and layer: 8 heads of 128 each
TOKENS, SQUARES = 4000.0, 4000.0**2


def shared(each: int, *, recompute: str = "full", cluster: Cluster = NODE, profile: Profile = PROFILE) -> Cost:
    known = replace(profile, recompute=recompute != "none")
    return Cost(MODEL, known, cluster, Recipe("collective", recompute=recompute, context=each, sharding="full"))


def seconds(cost: Cost, what: str) -> float:
    """Of one microbatch of one sample on each worker."""
    tokens, squares, one = (np.full((1, 1, cost.workers), of) for of in (TOKENS, SQUARES, 1.0))
    return float(cost.compute(Load(tokens, squares, one, np.ones((1, cost.workers), np.int64)))(what, 0)[0, 0])


@pytest.mark.parametrize("recompute", AGAIN)
@pytest.mark.parametrize("each", [2, 4, 8])
def test_a_gpu_computes_its_part_and_waits_for_keys_of_all(each, recompute):
    """By hand: of a layer's forward an all-gather of keys and values in bf16; of its backward as many again as
    attention runs again and once for itself, and a sum of gradients in fp32."""
    own = 1e-3 + 1e-6 * TOKENS / each + 1e-10 * SQUARES / each + 1e-5
    gather = 1e-5 + 2 * KEYS * TOKENS * (each - 1) / each / LINK
    sums = 1e-5 + 4 * KEYS * TOKENS * (each - 1) / each / LINK
    again = {"full": 1.0, "layers": 0.5}.get(recompute, 0.0)
    cost = shared(each, recompute=recompute)
    assert seconds(cost, "forward") == pytest.approx(own + gather)
    assert seconds(cost, "backward") == pytest.approx(own + (1 + again) * gather + sums)
    assert seconds(cost, "head") == seconds(cost, "embed") == pytest.approx(own)


def test_between_nodes_and_by_measured_collectives():
    """Groups of whole nodes pass each other's keys through the cards of a node; what was measured is taken."""
    two = replace(NODE, gpus=16)
    ring = 1e-5 + 15e-6 + 2 * KEYS * TOKENS / 2 / (8 * 25e9)
    alone = seconds(shared(1), "forward") - 1e-6 * TOKENS * 15 / 16 - 1e-10 * SQUARES * 15 / 16
    assert seconds(shared(16, cluster=two), "forward") == pytest.approx(
        alone + max(ring, 1e-5 + 15e-6 + 2 * KEYS * TOKENS * 15 / 16 / LINK)
    )
    timings = (Timing("all-gather", 4, 1e-3, 1e-9), Timing("reduce-scatter", 4, 2e-3, 2e-9))
    known = shared(4, profile=replace(PROFILE, timings=timings), recompute="none")
    part = 1e-3 + 1e-5 + (1e-6 * TOKENS + 1e-10 * SQUARES) / 4
    assert seconds(known, "backward") == pytest.approx(part + 3e-3 + (1e-9 * 2 + 2e-9 * 4) * KEYS * TOKENS)


def test_without_sharing_nothing_changes_and_emptier_seconds_are_shared_too():
    one = shared(1)
    assert one.own is one.profile
    below = ProfileBelow(ALONE, ALONE, ALONE, ALONE)
    joined = replace(PROFILE, fewest=1500, most_tokens=9000, below=below)
    cost = shared(4, profile=joined)
    assert (cost.own.fewest, cost.own.most_tokens) == (6000, 36_000)
    assert cost.own.below.forward == cost.own.forward
    assert seconds(cost, "forward") == pytest.approx(seconds(shared(4), "forward"))


def test_the_slowest_gpu_of_a_group_sets_its_pace():
    cluster = replace(NODE, slow=((1, 1.2), (2, 3.0), (7, 1.1)))
    assert shared(2, cluster=cluster).pace.tolist() == [1.2, 3.0, 1.0, 1.1]
    assert shared(4, cluster=cluster).pace.tolist() == [3.0, 1.1]


REFUSED = {
    "a group that does not divide": ({"context": 3}, 8, 8, "qwen2.5-7b"),
    "a group that no node holds whole": ({"context": 6, "sharding": "full"}, 24, 8, "qwen2.5-7b"),
    "nodes that hold all parameters": ({"context": 16, "sharding": "hybrid"}, 32, 8, "qwen2.5-7b"),
    "none": ({"context": 0}, 8, 8, "qwen2.5-7b"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_nobody_runs_is_refused(case):
    choices, devices, per_node, model = REFUSED[case]
    with pytest.raises(InputError, match="context"):
        cost_of(model, "a100", None, devices, per_node, recipe=USUAL.by(**choices))


def test_linear_attention_is_refused_and_never_offered():
    model = replace(MODEL, linear_layers=8, linear_parameters=1000)
    alone = replace(shared(1), model=model)
    assert not room.groups(alone)
    with pytest.raises(InputError, match="linear attention"):
        alone.by(context=2)


# Seconds, by all ways to compute them.


def file_of(cost: Cost, lengths: tuple[int, ...]) -> ScheduleFile:
    """A sample for each worker in turn."""
    count = len(lengths)
    deal = tuple(tuple((i,) for i in range(worker, count, cost.workers)) for worker in range(cost.workers))
    header = Header("native", MODEL.name, "", max(lengths), cost.workers)
    return ScheduleFile(header, (Schedule.of(lengths, deal),)).sealed()


@pytest.mark.parametrize("sync", ["collective", "on-demand"])
def test_scan_and_events_agree_to_the_last_bit(sync):
    cost = shared(2, cluster=replace(NODE, gpus=16, slow=((3, 1.3),))).by(sync=sync)
    file = file_of(cost, tuple(range(500, 2100, 100)))
    spans = []
    for executor in EXECUTORS:
        with by(executor):
            spans.append(simulate(file, cost))
    assert (spans[0].blocks[0].had == spans[1].blocks[0].had).all()
    assert spans[0].about.devices == 8
    assert usage(file.schedules, cost).makespan[0] == makespans(file.schedules, cost)[0] == spans[0].blocks[0].had.max()


def test_a_group_uses_the_links_of_all_its_gpus():
    """One-sided transfers share a node's cards: a group of two on two cards has one for each GPU, as two GPUs alone."""
    cards = replace(NODE, gpus=16, nics_per_node=4)
    pairs = shared(2, cluster=cards).by(sync="on-demand")
    lone = shared(1, cluster=cards).by(sync="on-demand")
    moved = replace(PROFILE, forward=Polynomial(), backward=Polynomial(), head=Polynomial(), embed=Polynomial())
    pairs, lone = (replace(cost, profile=moved) for cost in (pairs, lone))
    one, other = (makespans(file_of(c, (100,) * c.workers).schedules, c)[0] for c in (pairs, lone))
    keys = 100 * KEYS * (2 + 4 + 2 + 2) / 2 / LINK + 4e-5  # what the pairs gather beside it
    assert one == pytest.approx(other, abs=2 * MODEL.layers * keys)
    free = makespans(file_of(lone, (100,) * 16).schedules, replace(lone, cluster=replace(cards, nics_per_node=8)))[0]
    assert one > 1.5 * free


# Memory and rows.


def test_memory_is_that_of_a_part_and_of_the_keys_of_all():
    """States are over all GPUs; by hand 2 bytes of keys and values of all tokens, and 4 of gradients of a part."""
    recipe = USUAL.by(sync="collective", loss="whole", stack="plain", recompute="none")
    one = memory.estimate(MODEL, 8, 4096, recipe)
    four = memory.estimate(MODEL, 8, 4 * 4096, recipe.by(context=4))
    more = four.terms["buffers"] - one.terms["buffers"]
    assert more in (0.0, pytest.approx(KEYS * (2 * 4 * 4096 + 4 * 4096)))  # none where the loss is the fullest moment
    same = [name for name in one.terms if name not in ("buffers", "slack")]
    assert [four.terms[name] for name in same] == [one.terms[name] for name in same]
    chunked = recipe.by(loss="chunked")
    one, four = (memory.estimate(MODEL, 8, n * 4096, chunked.by(context=n)) for n in (1, 4))
    assert four.terms["buffers"] - one.terms["buffers"] == pytest.approx(KEYS * (2 * 4 * 4096 + 4 * 4096))


def test_rows_count_gpus_and_not_groups():
    asked = {"gpu": "h100", "devices": 8, "global_batch": 16, "minibatches": 3, "max_tokens": 60_000}
    one, four = (
        compare(odcsim.ask([30_000] * 99, MODEL.name, **asked, context=n)).row("lb-micro", "collective") for n in (1, 4)
    )
    for row in (one, four):
        assert row.gpu_hours == pytest.approx(8 * row.makespan_seconds / 3600)
        assert row.samples_per_second_per_device * 8 * row.makespan_seconds == pytest.approx(3 * 16)
    assert four.tflops_per_device * four.makespan_seconds == pytest.approx(one.tflops_per_device * one.makespan_seconds)
    assert four.microbatches == pytest.approx(8 / 2, rel=0.5)  # 8 samples of a group, two of them in a microbatch
    assert four.model_high / four.makespan_seconds > one.model_high / one.makespan_seconds  # nobody measured it


# Against what others published.

# torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 2: Llama 3.1 8B on 8 H100 (96 GB of HBM2e, 500 W), FSDP
# and CP, torch.compile, Float8, local batch 1, full activation checkpointing. Tokens in a sequence, tokens a second of
# a GPU, GiB.
TORCHTITAN = {1: (32_768, 3890, 83.9), 2: (65_536, 2540, 84.2), 4: (131_072, 1071, 84.0), 8: (262_144, 548, 84.5)}
# 360-LLaMA-Factory at 24ce078, README.md, SFT Max Length: the longest sample of full-parameter SFT on A800 with
# zero3-offload and gradient checkpointing, 8 GPUs to each, in thousands of tokens.
LONGEST = {("qwen2.5-7b", 8): 210, ("qwen2.5-14b", 8): 175, ("qwen2.5-72b", 32): 128}


def test_published_seconds_and_memory_of_a_sequence_on_more_and_more_gpus():
    """Each GPU has as many tokens. Memory is flat, as published. Seconds are those of an even cut: as published on two,
    and on four and eight less than published (docs/model/context.md)."""
    how = {"precision": "fp8", "stack": "compiled", "loss": "whole", "attention": "sdpa", "minibatches": 2}
    rows, costs = {}, {}
    for each, (length, _, _) in TORCHTITAN.items():
        asked = {"gpu": "h100", "devices": 8, "global_batch": 8 // each, "context": each, "max_tokens": length, **how}
        setting = odcsim.ask([length] * 64, MODEL.name, **asked)
        rows[each], costs[each] = compare(setting).row("lb-micro", "collective"), setting.cost
    print("GPUs  tokens   tokens/s of a GPU: published, ours; over that of one: published, ours; GiB: published, ours")
    for each, (length, published, gigabytes) in TORCHTITAN.items():
        ours, own = rows[each].tokens_per_second / 8, rows[each].memory_bytes / 2**30
        over, ours_over = published / TORCHTITAN[1][1], ours / (rows[1].tokens_per_second / 8)
        print(f"{each:4} {length:8,} {published:8,} {ours:6,.0f} {over:8.2f} {ours_over:6.2f} {gigabytes:8} {own:6.1f}")
        assert ours_over == pytest.approx(over, rel=0.05) if each <= 2 else over < ours_over < 1.4 * over
        # Cut into consecutive parts, the last GPU has 2 - 1/N times the average squares.
        layer = costs[each].own.forward.quadratic + costs[each].own.backward.quadratic
        longer = MODEL.layers * layer * float(length) ** 2 * (1 - 1 / each)
        consecutive = 1 / (1 / ours + longer / (length / each)) / (rows[1].tokens_per_second / 8)
        assert consecutive <= over * 1.01
        assert own == pytest.approx(rows[1].memory_bytes / 2**30, rel=0.02)


def test_published_longest_samples():
    print("model         GPUs  longest, thousands of tokens: published, ours")
    for (model, devices), published in LONGEST.items():
        recipe = USUAL.by(sync="collective", context=8, offload=True, stack="plain", loss="whole", sharding="full")
        ours = room.fullest(cost_of(model, "a100", None, devices, recipe=recipe), 10**6, 80e9, 10**6) / 1000
        print(f"{model:12} {devices:5} {published:8} {ours:6.0f}")
        assert ours == pytest.approx(published, rel=0.15)


def test_what_sharing_adds_to_attention_alone_is_less_than_published():
    """ring-flash-attention's README: forward and backward of Llama 3.1 8B's attention, 8 A100, 8,192 tokens on each."""
    published = 1 / 10.6 - 8 / 94.7
    nothing = replace(PROFILE, forward=Polynomial(), backward=Polynomial())
    cost = shared(8, recompute="none", cluster=cluster_of(A100, 8), profile=nothing)
    ours = sum(of.constant + of.linear * 8 * 8192 for of in (cost.own.forward, cost.own.backward))
    assert ours == pytest.approx(4e-3, rel=0.02)
    assert 0.3 * published < ours < published == pytest.approx(9.9e-3, rel=0.02)


# As a way.


def best_by_brute_force(site: search.Site) -> advice.Pick | None:
    """Of those who meet."""
    way = search.best(site, [way for way in site.ways() if not way.one_sided])
    return way and advice.run(way)


@pytest.mark.parametrize(("longest", "batch"), [(32_000, 16), (60_000, 8), (1000, 64), (120_000, 8)])
def test_advice_would_share_each_sequence_among_as_many_as_brute_force_does(longest, batch):
    lengths = np.append(np.random.default_rng(1).integers(200, 1200, 400), [longest] * 8)
    question = odcsim.question.Question(
        trace=Trace("drawn", lengths), model="qwen2.5-1.5b", gpu="h100", global_batch=batch, minibatches=4, epochs=1.0
    )
    wish = advice.Wish(question, ("h100",), (8,))
    found = levers(advice.searched(wish))
    every = [best_by_brute_force(search.site(wish.on("h100", 8), (each,))) for each in (2, 4, 8)]
    best = min((one for one in every if one), key=lambda one: one.row.makespan_seconds)
    said = [lever for lever in found.found if lever.change.kind == SHARED]
    if found.cause is None or found.base.makespan_seconds < NOTABLE * best.row.makespan_seconds:
        assert said == []
        return
    [lever] = said
    assert lever.change.flags == f"--context {best.way.cost.recipe.context}"
    assert lever.row.makespan_seconds == pytest.approx(best.row.makespan_seconds, rel=0.01)


def test_a_comparison_says_the_same_change_and_prices_it_as_it_is_asked():
    """On a batch of the same size, by those who meet."""
    lengths = [30_000] * 8 + [500] * 300
    asked = {"gpu": "h100", "devices": 8, "minibatch": 2, "minibatches": 4}
    found = levers(compare(odcsim.ask(lengths, "qwen2.5-1.5b", **asked)))
    [lever] = [lever for lever in found.found if lever.change.kind == SHARED]
    each = int(lever.change.flags.split()[1])
    assert lever.change.flags == f"--context {each} --minibatch {2 * each}"
    again = odcsim.ask(lengths, "qwen2.5-1.5b", **asked | {"minibatch": 2 * each, "context": each})
    row = compare(again).row(lever.row.balancer, lever.row.sync)
    assert lever.row.makespan_seconds == pytest.approx(row.makespan_seconds)


def test_where_one_sample_fills_a_gpu_sharing_it_is_the_way_out():
    """The remedy that is named fits, and half as many GPUs do not."""
    setting = odcsim.ask([200_000] * 64, "qwen2.5-7b", gpu="a100", devices=8, global_batch=8, max_tokens=0)
    from odcsim.decide.remedies import remedies

    assert any(words.startswith("--context 4 (57 GB)") for words in remedies(setting))
    needs = [room.least(room.under(setting.cost.by(context=n), "collective"), setting.trace).total for n in (2, 4)]
    assert needs[0] > 0.92 * A100.memory_bytes > needs[1]
    [offer] = odcsim.advise([200_000] * 64, "qwen2.5-7b", gpus="a100", devices=8, global_batch=8, minibatches=2).offers
    assert offer.chosen.way.cost.recipe.context >= 4


# What is handed over.


@pytest.mark.parametrize("sharding", ["full", "hybrid"])
def test_trainers_degrees_multiply_to_the_gpus(sharding):
    recipe = USUAL.by(sync="collective", context=4, sharding=sharding)
    row = ChosenRow(recipe, "packed", 16, 8, 6, 30_001, 3.0)
    assert row.workers == 4
    assert row.samples == 24
    titan = TRAINERS["torchtitan"].settings(row)
    axes = ("data_parallel_shard", "data_parallel_replicate", "context_parallel")
    assert np.prod([titan[f"--parallelism.{name}_degree"] for name in axes]) == 16
    assert titan["--training.global_batch_size"] % (4 * titan["--training.local_batch_size"]) == 0
    assert titan["--training.seq_len"] == 30_008  # PyTorch's cut needs twice as many parts as GPUs
    words = TRAINERS["accelerate"].command(row).split()
    sizes = [int(words[words.index(f"--parallelism_config_{n}_size") + 1]) for n in ("dp_replicate", "dp_shard", "cp")]
    assert np.prod(sizes) == int(words[words.index("--num_processes") + 1]) == 16


def test_who_does_not_say_it_as_it_is_priced_is_refused():
    able = {name for name, trainer in TRAINERS.items() if "context" in trainer.knows}
    assert able == {"accelerate", "prime-rl", "torchtitan"}
    with pytest.raises(InputError, match="context=2 with trainer verl"):
        compare(odcsim.ask([500] * 64, MODEL.name, gpu="h100", devices=8, minibatch=1, context=2, trainer="verl"))


def test_a_profile_measured_without_it_has_a_wider_interval():
    known = replace(PROFILE, low=0.9, high=1.1)
    setting = odcsim.ask([500] * 64, MODEL.name, gpu="a100", devices=8, minibatch=1, max_tokens=0)
    from odcsim.decide.unmeasured import widen

    one, two = (widen(replace(setting, cost=replace(shared(n), profile=known))).cost.profile for n in (1, 2))
    assert two.high > one.high
    assert "context parallelism over 2 GPUs" in two.origin


def test_estimates_of_the_catalogue_know_it():
    one, four = (estimate(MODEL, A100, 8, USUAL.by(context=n)) for n in (1, 4))
    assert four.high > one.high
    assert four.forward == one.forward
    assert cluster_of(A100, 8).gpus == 8
