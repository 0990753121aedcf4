"""How a step is sharded where nobody says: one rule, which never recommends what does not fit."""

import json
from dataclasses import replace
from math import inf

import pytest

from odcsim import network
from odcsim.cli import main
from odcsim.decide import sharding
from odcsim.decide.asking import ask, asked, setting_of
from odcsim.decide.comparison import compare
from odcsim.decide.fixed import fixed, sentence
from odcsim.neighbours import TRAINERS
from odcsim.reading import load
from odcsim.recipe import Recipe
from odcsim.results import capacity

CHAT = "uniform:min=500,max=4000,samples=400"
TRACE = load(CHAT)
SMALL = {"gpu": "h100", "minibatch": 2, "minibatches": 2, "max_tokens": 6000}


def setting(model="qwen3-8b", devices=16, **more):
    return ask(TRACE, model, devices=devices, **SMALL | more)


def without_reason(one):
    return replace(one, sharded_by="")


def test_on_one_node_it_is_full_to_the_last_bit():
    usual, full = setting(devices=8), setting(devices=8, sharding="full")
    assert usual == full
    assert compare(usual, doubted=False).rows == compare(full, doubted=False).rows
    assert "sharding_because" not in fixed(usual)


def test_on_several_nodes_that_hold_it_it_is_hybrid_for_all_rows():
    usual, hybrid = setting(), setting(sharding="hybrid")
    assert without_reason(usual) == hybrid
    rows = compare(usual, doubted=False).rows
    assert rows == compare(hybrid, doubted=False).rows
    assert {row.sharding for row in rows} == {"hybrid"}
    assert fixed(usual)["sharding_because"] == sharding.USUAL
    assert "hybrid sharding (usual between nodes; --sharding full is the other)" in sentence(usual)
    assert "hybrid sharding," in sentence(hybrid)


@pytest.mark.parametrize(
    ("model", "more", "why"),
    [
        ("qwen2.5-32b", {}, "hybrid would take "),
        ("qwen3-8b", {"devices": 12}, "hybrid is for whole nodes of 8 devices"),
        ("qwen3-8b", {"trainer": "slime"}, "slime's settings do not say hybrid"),
    ],
)
def test_where_hybrid_is_no_choice_it_is_full_and_says_why(model, more, why):
    usual, full = setting(model, **more), setting(model, **more, sharding="full")
    assert without_reason(usual) == full
    assert usual.sharded_by.startswith(why)
    assert f"full sharding ({why}" in sentence(usual)


@pytest.mark.parametrize("limit", [6000, 60_000])
@pytest.mark.parametrize("model", ["qwen3-8b", "qwen3-14b", "qwen2.5-32b", "llama-3.1-70b"])
@pytest.mark.parametrize("gpu", ["a100-40gb", "h100", "b200"])
def test_it_never_takes_what_does_not_fit_over_what_does(gpu, model, limit):
    """Of both sides, with every minibatch's own plans."""
    usual, full = (
        compare(setting(model, gpu=gpu, max_tokens=limit, **how), among=PAIRS, doubted=False)
        for how in ({}, {"sharding": "full"})
    )
    for ours, theirs in zip(usual.rows, full.rows, strict=True):
        assert capacity.level(ours) <= capacity.level(theirs)


PAIRS = [("lb-micro", "collective"), ("lb-micro", "on-demand"), ("lb-robust", "on-demand")]


def test_a_run_that_exists_is_taken_to_have_been_full():
    question = asked({"trace": TRACE, "model": "qwen3-8b", "devices": 16, **SMALL})
    assert setting_of(sharding.as_ran(question)) == setting(sharding="full")
    assert sharding.of_run(setting()) == setting(sharding="full")
    said = replace(question, recipe=Recipe(sharding="hybrid"))
    assert setting_of(sharding.as_ran(said)) == setting(sharding="hybrid")
    assert sharding.of_run(setting(sharding="hybrid")) == setting(sharding="hybrid")


def test_a_recipe_that_nobody_settled_runs_as_one_mesh_of_all_devices():
    assert Recipe().on(1).sharding == Recipe().on(4).sharding == "full"
    assert Recipe(sharding="hybrid").on(4).sharding == "hybrid"


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
    assert times * network.one_sided(cluster, weights, 16) == pytest.approx(16.4, abs=0.05)  # of each microbatch
    once = [network.exchange(cluster, size, collective=False) for size in (weights, gradients)]
    assert sum(once) == pytest.approx(3.07, abs=0.05)  # of a minibatch, however many microbatches it has
    hybrid = cost.by(sharding="hybrid").program(5)
    assert sum(hybrid.leaves_node(step) for step in hybrid.steps) == 2


@pytest.mark.parametrize("trainer", [name for name, known in TRAINERS.items() if "hybrid" in known.knows])
def test_flags_say_what_was_priced(trainer, tmp_path, capsys):
    words = ["compare", CHAT, "--model", "qwen3-1.7b", "--gpu", "b200", "--devices", "16", "--minibatch", "4"]
    assert main([*words, "--minibatches", "2", "--trainer", trainer, "--json"]) == 0
    told = capsys.readouterr().out
    assert json.loads(told)["inputs"]["sharding"] == "hybrid"
    (tmp_path / "rows.json").write_text(told, encoding="utf-8")
    assert main(["flags", trainer, str(tmp_path / "rows.json")]) == 0
    said = capsys.readouterr().out.replace(":", "").replace("=", " ")
    assert any(f"{name} 8" in said for name in ("shard_size", "shard_degree", "fsdp_size"))
    assert "not said here" not in said


def test_simulate_takes_what_compare_took(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for model, how in (("qwen3-8b", "hybrid"), ("qwen2.5-32b", "full")):
        words = ["--gpu", "h100", "--devices", "16"]
        batch = ["--minibatch", "2", "--minibatches", "2", "--max-tokens", "6000", "--force"]
        assert main(["balance", CHAT, "--balancer", "lb-micro", "--model", model, *words, *batch, "-o", "a.jsonl"]) == 0
        for sync in ("collective", "on-demand"):
            run = ["simulate", "a.jsonl", "--sync", sync, "--gpu", "h100", "--executor", "analytic", "-o", "a.npz"]
            assert main([*run, "--force"]) == 0
            assert f"Held fixed: {how} sharding (" in capsys.readouterr().out


def test_where_full_sharding_has_room_for_fuller_microbatches_that_is_said():
    words = {"gpu": "h100", "minibatch": 4, "minibatches": 2}
    tight = ask("deepcoder-rl", "r1-distill-qwen-14b", devices=16, **words)
    assert sharding.squeezed(tight).startswith("Memory leaves room for ")
    assert sharding.squeezed(tight) in compare(tight, among=PAIRS, doubted=False).sentences()
    roomy = ask(TRACE, "qwen2.5-1.5b", devices=16, **words)
    assert roomy.cost.sharded == "hybrid"
    assert not sharding.squeezed(roomy)
    asked_for = ask("deepcoder-rl", "r1-distill-qwen-14b", devices=16, sharding="hybrid", **words)
    assert not sharding.squeezed(asked_for)
