"""A Trainer that is watched learns what it learns unwatched, to the last bit, and its files say what it ran."""

import itertools
import json

import pytest
import torch
from datasets import Dataset
from tiny_mixed import EVALUATED, mixed, training
from tiny_trainers import DDP, Texts, arguments, both, in_order, llama, outcome, words
from transformers import Trainer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import odc_engine

pytestmark = pytest.mark.slow

STOCK = in_order(Trainer)


def steps_of(folder, rank):
    return [json.loads(line) for line in (folder / f"watch-rank{rank}.jsonl").read_text().splitlines()]


def trained(trainer, folder, watched=True, **resumed):
    if watched:
        trainer.add_callback(odc_engine.watch(folder / "watched", every=0))
    trainer.train(**resumed)
    return outcome(trainer)


def both_ways(rank, folder, name, changed):
    kind = mixed(name, STOCK)
    return [trained(training(kind, rank, folder / "out", **changed), folder, watched) for watched in (False, True)]


def alike(unwatched, watched, within=0.0):
    assert unwatched.furthest(watched) <= within
    for name in ("loss", "grad_norm", "eval_loss"):
        assert watched.column(name) == pytest.approx(unwatched.column(name), rel=within, abs=0)


MODES = {
    "FSDP2": ("stock", EVALUATED),
    "DDP": ("stock", DDP | EVALUATED),
    "checkpointed": ("stock", {"gradient_checkpointing": True}),
    "balanced": ("balanced", EVALUATED),
    "on demand": ("on demand", EVALUATED),
    "balanced over DDP": ("balanced", DDP),
}


@pytest.mark.parametrize("mode", MODES)
def test_losses_and_weights_are_those_of_the_same_run_unwatched(pools, tmp_path, mode):
    """On demand, gradients are added up as they come: not to the bit. And evaluations are in no step."""
    kind, changed = MODES[mode]
    for found in both(pools, both_ways, tmp_path, kind, changed):
        alike(*found, 1e-5 if kind == "on demand" else 0.0)
    steps = [step for rank in range(2) for step in steps_of(tmp_path / "watched", rank)[1:4]]
    held = [length for step in steps for m in step["microbatches"] for length in m["lengths"]]
    assert sorted(held) == sorted(len(Texts(24)[i]["input_ids"]) for i in range(24))  # an epoch is three steps
    steps_are_whole(tmp_path / "watched")
    for rank in range(2):
        steps = steps_of(tmp_path / "watched", rank)[1:]
        assert len(steps) == 6
        assert kind != "stock" or {len(step["microbatches"]) for step in steps} == {2}
        assert kind == "stock" or all(m["computed"] <= 64 for step in steps for m in step["microbatches"])
        for one, other in itertools.pairwise(steps):
            assert other["begin"] >= one["begin"] + one["seconds"] - 1e-3


def resumed(rank, folder):
    for steps in (2, 4):
        saved = DDP | {"max_steps": steps, "save_strategy": "steps", "save_steps": 2}
        trained(training(STOCK, rank, folder / "out", **saved), folder, resume_from_checkpoint=steps == 4)


def test_a_run_that_is_resumed_gets_a_folder_of_its_own_and_counts_on(pools, tmp_path):
    both(pools, resumed, tmp_path)
    for folder, numbers in (("watched", [1, 2]), ("watched-2", [3, 4])):
        for rank in range(2):
            about, *steps = steps_of(tmp_path / folder, rank)
            assert (about["rank"], about["ranks"], about["trainer"]) == (rank, 2, "transformers")
            assert [step["step"] for step in steps] == numbers


def steps_are_whole(folder):
    for rank in range(2):
        for step in steps_of(folder, rank)[1:]:
            spans = [(m["begin"], m["begin"] + m["seconds"]) for m in step["microbatches"]]
            edges = [step["loader"], *(edge for span in spans for edge in span), step["seconds"]]
            assert edges == pytest.approx(sorted(edges), abs=1e-5)
            assert all(0 <= m.get("waited", 0) <= m["seconds"] + 1e-5 for m in step["microbatches"])


def finetuned(rank, folder, changed):
    found = []
    for watched in (False, True):
        usual = {"bf16": False, "max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}
        own = arguments(rank, folder / "out", SFTConfig, **usual | changed)
        texts = Dataset.from_list([Texts(24)[i] for i in range(24)])
        trainer = SFTTrainer(model=llama(), args=own, train_dataset=texts, processing_class=words())
        found.append(trained(trainer, folder, watched))
    return found


@pytest.mark.parametrize("padding_free", [False, True], ids=["padded", "without padding"])
def test_sft_of_trl_packed_or_padded(pools, tmp_path, padding_free):
    for found in both(pools, finetuned, tmp_path, {"padding_free": padding_free}):
        alike(*found)
    steps_are_whole(tmp_path / "watched")
    about, *steps = steps_of(tmp_path / "watched", 0)
    assert about["trainer"] == "trl"
    every = [m for step in steps for m in step["microbatches"]]
    assert {len(m["lengths"]) for m in every} == {2}
    assert any(m["computed"] > sum(m["lengths"]) for m in every) == (not padding_free)


class Referring(in_order(Trainer)):
    """Asks its own model what it thought before, as trainers with adapters do."""

    def compute_loss(self, model, inputs, **more):
        with torch.no_grad():
            model(**inputs)
        return super().compute_loss(model, inputs, **more)


def other(rank, folder, prefers):
    """A loss that asks its own model first; a preference, of which a reference model reads both texts, too."""
    if prefers:
        rows = [{"prompt": "1 2 3", "chosen": "4 " * (2 + i % 5), "rejected": "5 " * (3 + i % 7)} for i in range(24)]
        own = arguments(rank, folder / "out", DPOConfig, bf16=False, max_steps=2)
        data = {"train_dataset": Dataset.from_list(rows), "processing_class": words(), "ref_model": llama()}
        trainer = DPOTrainer(model=llama(), args=own, **data)
    else:
        trainer = training(Referring, rank, folder / "out", max_steps=2)
    trained(trainer, folder)


@pytest.mark.parametrize(("prefers", "texts"), [(False, 2), (True, 4)])
def test_a_pass_forward_without_a_trace_is_none_of_a_microbatch(pools, tmp_path, prefers, texts):
    both(pools, other, tmp_path, prefers)
    steps_are_whole(tmp_path / "watched")
    for rank in range(2):
        steps = steps_of(tmp_path / "watched", rank)[1:]
        assert [[len(m["lengths"]) for m in step["microbatches"]] for step in steps] == [[texts] * 2] * 2
