"""Settings for other trainers: of a row that was priced as the trainer runs it, as many tokens, samples and devices."""

import io
import json
import sys
from dataclasses import replace

import pytest

from odcsim.catalog import gpu
from odcsim.cli import main
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import ChosenRow
from odcsim.neighbours.written import lines, notes

ROW = ChosenRow("collective", "lb-micro", 16, 8, 4, 32768, 2.6)
MADE = {"max_tokens": 32768, "minibatch": 4, "each": 0, "samples": 64.0, "tokens": 9e4}
OFFER = {"gpu": "h100", "devices": 16, "sync": "collective", "balancer": "own", "max_tokens": 32768, "minibatch": 4,
         "recompute": False, "selective": "no", "sharding": "hybrid", "microbatches": 2.6, "lora": 0,
         "made": MADE}  # fmt: skip


def advice(trainer, *offers):
    return {"schema": 1, "inputs": {"model": "m", "trainer": trainer}, "rows": list(offers) or [OFFER]}


COMPARED = {"devices": 8, "devices_per_node": 8, "minibatch": 4, "max_tokens": 1000, "gpu": "h100", "recompute": True}
TIMED = {
    "balancer": "lb-micro",
    "memory_fits": True,
    "minibatches": 10,
    "tokens_per_second": 24000.0,
    "sharding": "full",
}


def compared(trainer, *rows):
    names = ("sync", "makespan_seconds")
    inputs = COMPARED | {"trainer": trainer}
    return {"schema": 1, "inputs": inputs, "rows": [TIMED | dict(zip(names, r, strict=False)) | r[2] for r in rows]}


@pytest.fixture
def run(tmp_path, capsys):
    def run(trainer, content, *more):
        (tmp_path / "a.json").write_text(content if isinstance(content, str) else json.dumps(content))
        code = main(["flags", trainer, str(tmp_path / "a.json"), *more])
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_is_told_what_was_priced_and_where_its_names_are_from(run, trainer):
    code, told = run(trainer, advice(trainer))
    assert code == 0
    assert "32768" in told.out or trainer == "accelerate"  # which has no limit of tokens
    assert TRAINERS[trainer].source in told.out
    words = "# own + collective, 32,768 tokens a microbatch, 64 samples and 90,000 tokens a step\n"
    assert told.out.startswith(words)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_on_demand_is_told_where_the_engine_runs_it(run, trainer):
    on_demand = {name: value for name, value in OFFER.items() if name != "made"} | {"sync": "on-demand"}
    code, told = run(trainer, advice(trainer, on_demand))
    assert code == (0 if TRAINERS[trainer].engine else 2)
    assert "on-demand by odc_engine, with max_tokens = 32768" in told.out or code


@pytest.mark.parametrize("asked", [None, "axolotl"])
def test_what_was_priced_for_another_is_refused(run, asked):
    code, told = run("trl", advice(asked))
    assert code == 2
    assert told.err.endswith("has no row of what trl runs; ask again with --trainer trl, for the price of what it does "
                             "itself\n")  # fmt: skip
    code, told = run("trl", advice(asked), "--row", "1")
    assert code == 2
    assert "trl does not run collective + own as it was priced" in told.err


def test_what_does_not_fit_is_refused(run):
    full = OFFER | {"memory_fits": False, "memory_bytes": 113e9, "memory_limit": 86e9}
    code, told = run("trl", advice("trl", full))
    assert code == 2
    assert "the row needs 113 of 86 GB of memory; choose another with --row" in told.err


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=lambda t: t.name)
@pytest.mark.parametrize(
    "choice",
    [{"on_host": True}, {"rank": 16}, {"moments": "8bit"}, {"hybrid": True}, {"recompute": "operators"}],
)
def test_every_choice_is_said_or_said_not_to_be(trainer, choice):
    plain, chosen = (set(lines(trainer, replace(ROW, **more))) for more in ({}, choice))
    assert chosen - plain


SAMPLES = {  # by whose product a trainer makes the samples of a step, and what says that one step takes them all
    "verl": ("actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.rollout.n", "data.train_batch_size"),
    "slime": ("--rollout-batch-size", "--n-samples-per-prompt", "--global-batch-size"),
    "nemo-rl": ("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", "policy.train_global_batch_size"),
}


@pytest.mark.parametrize("rollouts", [1, 2, 8, 32])
@pytest.mark.parametrize("name", SAMPLES)
def test_rollouts_come_to_the_samples_that_were_priced(name, rollouts):
    row = replace(ROW, devices=16, minibatch=2, rollouts=rollouts)
    settings = TRAINERS[name].settings(row)
    prompts, each, step = (settings[key] for key in SAMPLES[name])
    assert prompts * each == row.samples == 32
    assert step == (prompts if name == "verl" else row.samples)
    assert any("not for supervised data" in note for note in notes(TRAINERS[name], row))


def test_who_generates_is_known_and_others_take_no_rollouts(run):
    assert {name for name, trainer in TRAINERS.items() if trainer.rollouts} == set(SAMPLES)
    for name in TRAINERS.keys() - set(SAMPLES):
        code, told = run(name, advice(name), "--rollouts", "8")
        assert (code, told.out) == (2, "")
        assert f"--rollouts 8, and {name} generates none" in told.err
        assert not any("supervised" in note for note in notes(TRAINERS[name], ROW))


def test_rollouts_that_do_not_divide_a_step_are_refused(run):
    for name in SAMPLES:
        code, told = run(name, advice(name), "--rollouts", "7")
        assert code == 2
        assert "--rollouts 7 does not divide 64 samples of a step; give a divisor of 64" in told.err


def test_pairs_say_what_their_price_leaves_out():
    pairs, samples = ("\n".join(notes(TRAINERS["trl"], replace(ROW, pairs=pairs))) for pairs in (True, False))
    assert "not in the price: the reference model's forward pass" in pairs
    assert "reference model" not in samples


def test_an_offer_of_several_nodes(run):
    out = run("verl", advice("verl"), "--rollouts", "8")[1].out.splitlines()
    nodes = 16 // gpu("h100").devices_per_node
    assert f"trainer.nnodes={nodes}" in out
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=8" in out
    assert f"actor_rollout_ref.actor.fsdp_config.fsdp_size={16 // nodes}" in out
    assert "actor_rollout_ref.model.enable_gradient_checkpointing=false" in out
    smaller = advice("verl", OFFER, OFFER | {"devices": 8, "sharding": "full"})
    assert "trainer.nnodes=1" in run("verl", smaller, "--row", "2")[1].out


def test_of_a_comparison_the_fastest_that_fits_and_that_the_trainer_runs(run):
    rows = (
        ("collective", 9.0, {"made": MADE}),
        ("deferred", 10.0, {"made": MADE, "balancer": "own"}),
        ("deferred", 5.0, {}),
        ("on-demand", 8.0, {}),
        ("deferred", 7.0, {"memory_fits": False, "balancer": "pool", "made": MADE}),
    )
    assert "# lb-micro + collective," in run("trl", compared("trl", *rows))[1].out
    assert "# lb-micro + on-demand," in run("trl", compared("trl", *rows[2:4]))[1].out
    code, told = run("axolotl", compared("axolotl", *rows[2:]))
    assert code == 2
    assert "choose one with --row" in told.err
    assert "# lb-micro + on-demand," in run("trl", compared("trl", *rows), "--row", "4")[1].out
    sizes = {"memory_bytes": 83e9, "memory_limit": 86e9}
    tight = ("deferred", 6.0, {"made": MADE, "balancer": "own", **sizes})
    assert "# lb-micro + collective," in run("trl", compared("trl", *rows, tight))[1].out
    assert "# own + deferred," in run("trl", compared("trl", tight))[1].out


def test_gradients_leave_when_they_were_priced_to(run):
    """transformers' own is at the end; after every microbatch where that was priced, which one alone need not say."""
    for sync, accumulated, told in (("deferred", 4, False), ("collective", 4, True), ("collective", 1, False)):
        made = MADE | {"each": 4 // accumulated}
        out = run("trl", advice("trl", OFFER | {"sync": sync, "balancer": "padded", "made": made}))[1].out
        assert f"--gradient_accumulation_steps {accumulated}\n" in out
        assert ("sync_each_batch" in out) == told


def test_model_epochs_and_the_longest_sample_are_carried(run):
    content = advice("trl", OFFER | {"balancer": "padded", "made": MADE | {"each": 2}})
    content["inputs"] |= {"model": "Qwen/Qwen3-8B", "epochs": 3.0, "trace_longest": 7000, "trace": "chats.jsonl"}
    out = run("trl", content)[1].out.splitlines()
    assert {"--model_name_or_path Qwen/Qwen3-8B", "--num_train_epochs 3", "--max_length 7000"} <= set(out)
    assert "# lengths were those of chats.jsonl: train on that dataset" in out


def test_json_by_a_pipe(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(advice("slime"))))
    assert main(["flags", "slime", "-"]) == 0
    assert "--max-tokens-per-gpu 32768" in capsys.readouterr().out


BAD = [
    "{",
    "[]",
    "null",
    "{}",
    '{"inputs": {}, "rows": []}',
    '{"inputs": {}, "rows": [5]}',
    '{"inputs": 3, "rows": [{}]}',
    '{"inputs": {}, "rows": [{"makespan_seconds": "a"}]}',
    '{"inputs": {}, "rows": [{"sync": 5}]}',
    '{"inputs": {"trainer": "verl"}, "rows": [{"sync": "collective", "made": {"each": "x"}}]}',
    '{"inputs": {"trainer": "verl"}, "rows": [{"sync": "collective", "made": 3}]}',
]


@pytest.mark.parametrize("content", BAD)
def test_what_holds_no_rows_is_one_line(run, content):
    code, told = run("verl", content)
    assert code == 2
    assert len(told.err.splitlines()) == 1


def test_a_step_of_rl_is_said_to_have_no_settings(tmp_path, run, capsys):
    (tmp_path / "l.csv").write_text("length\n" + "900\n300\n" * 20)
    small = ["--model", "qwen3-0.6b", "--gpu", "h100", "--devices", "2", "--prompts", "4", "--rollouts", "1"]
    assert main(["rl", str(tmp_path / "l.csv"), *small, "--steps", "2", "--json"]) == 0
    printed = capsys.readouterr().out
    for number in ([], ["--row", "1"]):
        code, told = run("verl", printed, *number)
        assert code == 2
        assert "comes from 'odcsim rl', whose rows have no settings; give what 'odcsim compare --json'" in told.err


def test_a_row_that_is_not_there(run):
    code, told = run("verl", advice("verl", OFFER, OFFER), "--row", "3")
    assert code == 2
    assert "--row 3 of 2; give 1 to 2" in told.err
