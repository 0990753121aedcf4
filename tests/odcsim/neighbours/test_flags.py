"""Settings for other trainers: of a row that was priced as the trainer runs it, as many tokens, samples and devices."""

import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import odcsim
from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import ChosenRow
from odcsim.neighbours.settings import TrainerFlags
from odcsim.recipe import USUAL
from odcsim.trace import DPO, GRPO, PAIR, SFT, Trace

ROW = ChosenRow(USUAL.by(sync="collective"), "lb-micro", 16, 8, 4, 32768, 2.6)
MADE = {"max_tokens": 32768, "minibatch": 4, "each": 0, "samples": 64.0, "tokens": 9e4}
OFFER = {"gpu": "h100", "devices": 16, "sync": "collective", "balancer": "own", "max_tokens": 32768, "minibatch": 4,
         "recompute": False, "selective": "no", "sharding": "hybrid", "microbatches": 2.6, "lora": 0,
         "made": MADE}  # fmt: skip
COMPARED = {"devices": 8, "devices_per_node": 8, "minibatch": 4, "max_tokens": 1000, "gpu": "h100", "recompute": True}
TIMED = {"balancer": "lb-micro", "memory_fits": True, "minibatches": 10, "tokens_per_second": 24000.0,
         "sharding": "full", "made": MADE}  # fmt: skip
BARE = {name: value for name, value in OFFER.items() if name != "made"}


def advice(trainer, *offers, **inputs):
    assumed = dict(TRAINERS[trainer].assumes) if trainer in TRAINERS else {}
    known = {"model": "m", "trainer": trainer} | assumed | inputs
    return {"schema": 1, "inputs": known, "rows": list(offers) or [OFFER]}


def compared(trainer, *rows):
    rows = [TIMED | {"sync": sync, "makespan_seconds": seconds} | more for sync, seconds, more in rows]
    rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return {"schema": 1, "inputs": COMPARED | dict(TRAINERS[trainer].assumes) | {"trainer": trainer}, "rows": rows}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_reads_what_was_priced(trainer):
    found = odcsim.flags(trainer, advice(trainer))
    assert trainer == "accelerate" or "32768" in str(found.settings)  # which has no limit of tokens
    assert any(TRAINERS[trainer].entries["sft"].source in line for line in found.lines)
    assert "32,768 tokens a microbatch, 64 samples and 90,000 tokens a step" in found.lines[0]
    on_demand = advice(trainer, BARE | {"sync": "on-demand"})
    if TRAINERS[trainer].engine:
        assert odcsim.flags(trainer, on_demand).row.recipe.sync == "on-demand"
    else:
        with pytest.raises(odcsim.InputError):
            odcsim.flags(trainer, on_demand)
    with pytest.raises(odcsim.InputError):
        odcsim.flags(trainer, advice(trainer), rollouts=8)  # of samples that are no rollouts


QLORA = {"lora": 16, "quantization": "nf4"}
CHOICES = [{"offload": True}, {"lora": 16}, {"optimizer": "8bit"}, {"sharding": "hybrid"}, {"recompute": "operators"}]

# As their documentation has QLoRA with double quantization, which is usual in axolotl and in LLaMA-Factory.
FOUR_BITS = {
    "trl": {"--load_in_4bit": None, "--use_bnb_nested_quant": None},
    "axolotl": {"adapter": "qlora", "load_in_4bit": True},
    "llamafactory": {"finetuning_type": "lora", "quantization_bit": 4},
}


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=lambda t: t.name)
def test_every_choice_is_said_or_said_not_to_be(trainer):
    rows = [replace(ROW, recipe=ROW.recipe.by(**choice)) for choice in CHOICES]
    rows += [replace(ROW, kind=kind) for kind in trainer.entries if kind != SFT]
    plain, *chosen = ({*TrainerFlags(trainer, row).lines} for row in (ROW, *rows))
    assert all(lines - plain for lines in chosen)
    few = TrainerFlags(trainer, replace(ROW, recipe=ROW.recipe.by(**QLORA)))
    assert {*few.lines} - chosen[1]
    assert ("quantized" in trainer.knows) == (trainer.name in FOUR_BITS)
    assert few.settings.items() >= FOUR_BITS.get(trainer.name, {}).items()


SAMPLES = {  # by whose product a trainer makes the samples of a step, and what says how many an update takes
    "verl": ("data.train_batch_size", "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    "slime": ("--rollout-batch-size", "--n-samples-per-prompt", "--global-batch-size"),
    "nemo-rl": ("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", "policy.train_global_batch_size"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_rollouts_come_to_the_samples_that_were_priced(name):
    assert {name for name, trainer in TRAINERS.items() if GRPO in trainer.entries} == {*SAMPLES, "trl"}
    for rollouts, updates in ((1, 1), (2, 3), (8, 1), (32, 2)):
        row = replace(ROW, devices=16, minibatch=2, rollouts=rollouts, kind=GRPO, updates=updates)
        prompts, each, update = (TRAINERS[name].settings(row)[key] for key in SAMPLES[name])
        assert prompts * each == row.samples * updates == 32 * updates
        assert update == (row.prompts if name == "verl" else row.samples)
    with pytest.raises(odcsim.InputError):
        print(odcsim.flags(name, advice(name, kind=GRPO), rollouts=7))  # does not divide 64


def test_of_a_comparison_the_fastest_that_fits_and_that_the_trainer_runs():
    rows = [
        ("collective", 9.0, {}), ("deferred", 10.0, {"balancer": "own"}), ("deferred", 5.0, {"made": None}),
        ("on-demand", 8.0, {"made": None}), ("deferred", 7.0, {"memory_fits": False, "balancer": "pool"}),
    ]  # fmt: skip
    tight = ("deferred", 6.0, {"balancer": "own", "memory_bytes": 83e9, "memory_limit": 86e9})

    def best(*some, **words):
        row = odcsim.flags("trl", compared("trl", *some), **words).row
        return row.balancer, row.recipe.sync

    assert best(*rows) == best(*rows, tight) == ("lb-micro", "collective")
    apart = ("lb-micro", "on-demand")
    assert best(*rows[2:4]) == best(*rows, row=4) == best(*rows, row=apart) == apart
    assert best(tight) == ("own", "deferred")
    with pytest.raises(odcsim.InputError):
        odcsim.flags("axolotl", compared("axolotl", *rows[2:]))


def test_gradients_leave_when_they_were_priced_to():
    """transformers' own is at the end; after every microbatch where that was priced, which one alone need not say.
    Model, epochs and the longest sample are carried."""
    for sync, accumulated, said in (("deferred", 4, False), ("collective", 4, True), ("collective", 1, False)):
        padded = OFFER | {"sync": sync, "balancer": "padded", "made": MADE | {"each": 4 // accumulated}}
        found = odcsim.flags("trl", advice("trl", padded))
        assert found.settings["--gradient_accumulation_steps"] == accumulated
        assert ("sync_each_batch" in str(found)) == said
    known = {"model": "Qwen/Qwen3-8B", "epochs": 3.0, "trace_longest": 7000, "trace": "chats.jsonl"}
    found = odcsim.flags("trl", advice("trl", padded, **known))
    for written in ("--model_name_or_path Qwen/Qwen3-8B", "--num_train_epochs 3", "--max_length 7000"):
        assert any(written in line for line in found.lines)
    assert any("chats.jsonl" in line for line in found.lines)


LENGTHS = np.minimum(np.random.default_rng(2).lognormal(7.0, 0.9, 400), 6000).astype(np.int64) + 1
ASKED = {"gpu": "h100", "devices": 4, "minibatch": 8, "minibatches": 3, "max_tokens": 8000}
WISHED = {"gpus": "h100", "devices": [2, 4], "global_batch": 32, "minibatches": 3}


@pytest.mark.parametrize("trainer", ["trl", "verl"])
def test_python_says_what_the_command_says(trainer, tmp_path, capsys, monkeypatch):
    """Settings are those of the lines; rows have numbers and names."""
    compared = odcsim.compare(odcsim.ask(LENGTHS, "qwen3-0.6b", **ASKED, trainer=trainer))
    results = compared, odcsim.advise(LENGTHS, "qwen3-0.6b", **WISHED, trainer=trainer)
    for result in results:
        path = tmp_path / "a.json"
        path.write_text(json.dumps(result.as_json()))
        for name in (str(path), "-"):
            monkeypatch.setattr(sys, "stdin", io.StringIO(path.read_text()))
            assert main(["flags", trainer, name]) == 0
            printed = capsys.readouterr().out
        for given in (result, result.as_json(), path, str(path)):
            assert f"{odcsim.flags(trainer, given)}\n" == printed
    found = odcsim.flags(trainer, compared)
    pair = found.row.balancer, found.row.recipe.sync
    assert found.settings == TRAINERS[trainer].settings(found.row)
    assert all(any(name in line for line in found.lines) for name in found.settings)
    assert found._repr_html_().count("<tr>") == 1 + len(found.settings) > 1
    for row in ([row.pair for row in compared.rows].index(pair) + 1, pair):
        assert odcsim.flags(trainer, compared, row=row).row == found.row


FULL = OFFER | {"memory_fits": False, "memory_bytes": 113e9, "memory_limit": 86e9}
ROWS = ["{}", '{"inputs": {}, "rows": []}', '{"inputs": {}, "rows": [5]}', '{"inputs": 3, "rows": [{}]}',
        '{"inputs": {}, "rows": [{"makespan_seconds": "a"}]}', '{"inputs": {}, "rows": [{"sync": 5}]}',
        '{"inputs": {"trainer": "verl"}, "rows": [{"sync": "collective", "made": {"each": "x"}}]}',
        '{"inputs": {"trainer": "verl"}, "rows": [{"sync": "collective", "made": 3}]}']  # fmt: skip
REFUSED = [  # a result and what is asked of it
    *[(json.loads(text), {}) for text in ROWS], (3, {}), ("nowhere.json", {}), (advice("verl", FULL), {}),
    *[(advice(asked), words) for asked in (None, "axolotl") for words in ({}, {"row": 1})],
    *[(advice("verl"), words) for words in ({"row": 0}, {"row": 2}, {"row": "best"}, {"rollouts": 1.5},
                                            {"row": ("lb-mini", "on-demnd")}, {"trainer": "vrel"}, {"trainer": 3})],
]  # fmt: skip


@pytest.mark.parametrize(("result", "words"), REFUSED)
def test_what_has_no_such_row_is_refused(result, words):
    with pytest.raises(odcsim.InputError) as caught:
        odcsim.flags(**{"trainer": "verl", "result": result} | words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_sync_that_is_none_is_refused_by_its_file(tmp_path, trainer):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(advice(trainer, OFFER | {"sync": "on-demnd"})))
    with pytest.raises(odcsim.InputError) as caught:
        odcsim.flags(trainer, str(path))
    assert str(path) in caught.value.where


@pytest.mark.parametrize("content", ["[]", "null", ROWS[-1]])
def test_what_holds_no_rows_is_one_line(tmp_path, content, capsys):
    (tmp_path / "a.json").write_text(content)
    assert main(["flags", "verl", str(tmp_path / "a.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("trainer", [{}, [], None, 5, replace(ROW, recipe={})])
def test_what_is_no_name_of_a_trainer_is_refused_whatever_it_is(trainer):
    """A result in the trainer's place, say, most of which have no hash."""
    with pytest.raises(odcsim.InputError, match="unknown trainer"):
        odcsim.flags(trainer, advice("trl"))


def test_pairs_are_no_samples_of_who_starts_no_dpo():
    """A script of supervised training would train on them without a word."""
    trace = Trace("pairs", np.arange(640) % 400 + 50, bundle=np.arange(640) // 2, unit=PAIR)
    asked, refused = {"gpu": "h100", "devices": 2, "minibatch": 4}, {}
    for name in TRAINERS:
        try:
            found = odcsim.compare(odcsim.ask(trace, "qwen2.5-0.5b", trainer=name, **asked))
            assert odcsim.flags(name, found).row.kind == DPO
        except InputError as error:
            refused[name] = error.fix
    assert set(refused) == {name for name, trainer in TRAINERS.items() if DPO not in trainer.entries}
    assert all("trl" in fix for fix in refused.values())


def test_where_whole_logits_do_not_fit_a_loss_in_chunks_is_named_by_who_has_one():
    """And asked for again, it is printed."""
    asked = {"gpu": "h100", "devices": 8, "minibatch": 2, "minibatches": 2}
    lengths = [60_000, *[900] * 200]
    for name in ("axolotl", "verl", "accelerate", "llamafactory"):
        with pytest.raises(InputError) as refused:
            odcsim.flags(name, odcsim.compare(odcsim.ask(lengths, "qwen2.5-7b", trainer=name, **asked)))
        assert "loss chunked" in refused.value.fix
        again = odcsim.compare(odcsim.ask(lengths, "qwen2.5-7b", trainer=name, loss="chunked", **asked))
        assert odcsim.flags(name, again).row.chunked
