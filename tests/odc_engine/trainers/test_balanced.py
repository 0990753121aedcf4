"""Balanced, over their own collectives: trainers learn what they learn stock, in equal numbers of microbatches."""

import re
from copy import deepcopy
from typing import ClassVar

import pytest
import torch
from losses import EVERY
from losses.followed import balanced
from losses.judged import judged, without_figures
from losses_page import row
from scripts import ROOT
from tiny_trainers import (
    IGNORED,
    Texts,
    Trained,
    adapted,
    alone,
    arguments,
    both,
    collate,
    in_order,
    llama,
    outcome,
    tied,
)
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from odc_engine.trainers import BalancedMixin
from odcsim.errors import InputError

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
SAMPLED = [sentence for sentence, kind in EVERY.items() if not kind.rollouts]
OTHERWISE = {  # than on demand, where FSDP2's own communication is not there
    "`super().compute_loss`, and a penalty on weights by `to_local()`": r"a rank's own part of a weight .*; use it in",
}


@pytest.mark.drawn(20)
@pytest.mark.parametrize("sentence", SAMPLED)
def test_losses_are_right_or_refused_as_on_demand(pools, tmp_path, sentence):
    verdict = judged(pools, tmp_path, sentence, balanced)
    assert verdict.wrong == ()
    if sentence in OTHERWISE:
        assert re.search(OTHERWISE[sentence], verdict.refused)
    else:
        own = row(sentence, verdict).replace("BalancedTrainer", "OnDemandTrainer")
        assert without_figures(own) in map(without_figures, PAGE.splitlines())


class Balanced(BalancedMixin, in_order(Trainer)):
    max_tokens = 64


KINDS = {"stock": in_order(Trainer), "balanced": Balanced}


def told(how, rank, folder, config=None, **changed):
    """Arguments of a trainer over FSDP2, or over DDP."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    ddp = {"fsdp": False, "fsdp_config": None} if how == "DDP" else {}
    own = arguments(rank, folder, config, **ddp | deepcopy(changed))
    if ddp:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_CPU
    return own


def trainer_of(kind, how, rank, folder, samples=48, model=llama, **changed):
    evaluated = {"eval_dataset": Texts(9)} if "eval_strategy" in changed else {}
    own = told(how, rank, folder, **changed)
    return KINDS[kind](model=model(), args=own, train_dataset=Texts(samples), data_collator=collate, **evaluated)


def compared(rank, folder, how, asked):
    found = []
    for kind in KINDS:
        trainer = trainer_of(kind, how, rank, folder / kind, **asked)
        trainer.train()
        assert isinstance(trainer.model_wrapped, FSDPModule) == (how == "FSDP2")
        found.append(outcome(trainer))
    return found


@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
def test_weights_losses_and_norms_are_those_of_stock_training(pools, tmp_path, how):
    changed = {"max_steps": 20, "max_grad_norm": 0.5, "learning_rate": 1e-3}
    for stock, own in both(pools, compared, tmp_path, how, changed):
        assert stock.furthest(own) < 1e-6
        for name in ("loss", "grad_norm", "epoch", "learning_rate", "train_loss"):
            assert own.column(name) == pytest.approx(stock.column(name), rel=1e-5)
        assert len(own.column("grad_norm")) == 20


MODES = {
    "evaluation": ({"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}, 1e-6),
    "gradient checkpointing": ({"gradient_checkpointing": True}, 1e-6),
    "compiled": ({"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 2}, 1e-6),
    "bf16": ({"bf16": True, "optim": "sgd", "learning_rate": 0.1}, 1e-3),
    "tokens counted": ({"include_num_input_tokens_seen": "non_padding"}, 1e-6),
    "tied embeddings": ({"model": tied}, 1e-6),
    "adapters": ({"model": adapted}, 1e-6),
    "reduced in each microbatch": (
        {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}},
        1e-6,
    ),
}


@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns_what_stock_training_learns(pools, tmp_path, mode, how):
    changed, bound = MODES[mode]
    for stock, own in both(pools, compared, tmp_path, how, {"learning_rate": 1e-3, "max_steps": 4} | changed):
        assert stock.furthest(own) < bound
        for name in ("loss", "grad_norm", "eval_loss", "num_input_tokens_seen"):
            assert own.column(name) == pytest.approx(stock.column(name), rel=10 * bound)


class Watched(Balanced):
    """Notes of each forward pass with gradients whether gradients meet in it, and how many there are."""

    meets: ClassVar[list[bool]] = []  # not a note of the trainer, which forgets what counts for nothing
    noted = 0

    def compute_loss(self, model, inputs, **more):
        if torch.is_grad_enabled():
            self.meets.append(bool(model.require_backward_grad_sync))
            self.noted += 1
        return super().compute_loss(model, inputs, **more)

    def training_step(self, model, inputs, items=None):
        self.noted = 0
        self.meets.clear()
        loss = super().training_step(model, inputs, items)
        own = sum(part.samples > 0 for _, part in inputs["microbatches"])
        self.steps.append(([*self.meets], own, self.noted))
        return loss


def watched(rank, folder, asked):
    own = told("DDP", rank, folder, **asked)
    trainer = Watched(model=llama(), args=own, train_dataset=Texts(17), data_collator=collate)
    trainer.steps = []
    trainer.train()
    return outcome(trainer), trainer.steps


def test_devices_run_as_many_microbatches_and_meet_in_the_last(pools, tmp_path):
    """The last minibatch of both epochs is a single sample: one device runs what counts for nothing."""
    changed = {"max_steps": -1, "num_train_epochs": 2, "optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0}
    changed |= {"lr_scheduler_type": "constant"}
    changed |= {"accelerator_config": {"even_batches": False}}  # else accelerate repeats samples at the end
    weights, losses = alone(17, 6)
    (one, ones), (other, others) = both(pools, watched, tmp_path, changed)
    for (mine, own, noted), (its, theirs, told_of) in zip(ones, others, strict=True):
        assert mine == its == [False] * (len(mine) - 1) + [True]
        assert max(own, theirs) == len(mine)
        assert (noted, told_of) == (own, theirs)
    assert [own + theirs for (_, own, _), (_, theirs, _) in zip(ones, others, strict=True)][2::3] == [1, 1]
    for trained in (one, other):
        assert trained.furthest(Trained(weights, [])) < 1e-6
        assert trained.column("loss") == pytest.approx(losses, rel=1e-5)


class Spoken(Texts):
    """All but long texts have no label, and so no mean over labels."""

    def __getitem__(self, i):
        sample = super().__getitem__(i)
        return sample if len(self.texts[i]) > 40 else sample | {"labels": [IGNORED] * len(self.texts[i])}


class Means(Balanced):
    """Of the tokens of a microbatch that have a label."""

    mean_over = "next_labels"

    def compute_loss(self, model, inputs, **_):
        logits, labels = model(input_ids=inputs["input_ids"]).logits[:, :-1], inputs["labels"][:, 1:]
        own = labels != IGNORED
        chosen = logits.log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
        return -(chosen * own).sum() / own.sum()


def means(rank, folder):
    own = told("DDP", rank, folder, max_steps=6, learning_rate=1e-3)
    trainer = Means(model=llama(), args=own, train_dataset=Spoken(17), data_collator=collate)
    trainer.train()
    return outcome(trainer)


def test_what_stands_in_has_a_loss(pools, tmp_path):
    """A microbatch without a label is not run, while another device runs one: else weights were no numbers."""
    for trained in both(pools, means, tmp_path):
        assert all(torch.isfinite(weight).all() for weight in trained.weights.values())
        assert all(loss == loss for loss in trained.column("loss"))
        assert len(trained.column("loss")) == 6


def saved(rank, folder, how):
    """Trained in one go; then from its checkpoint in the middle of an epoch."""
    asked = {"save_strategy": "steps", "save_steps": 4, "samples": 24, "learning_rate": 1e-3}
    trainers = [trainer_of("balanced", how, rank, folder, **asked) for _ in range(2)]
    trainers[0].train()
    trainers[1].train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    return [outcome(trainer) for trainer in trainers]


@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
def test_a_checkpoint_is_where_training_goes_on(pools, tmp_path, how):
    for whole, resumed in both(pools, saved, tmp_path, how):
        assert whole.furthest(resumed) < 1e-6
        assert resumed.column("loss")[-2:] == pytest.approx(whole.column("loss")[-2:], rel=1e-5)


TRL = {"SFTTrainer": (SFTTrainer, SFTConfig), "DPOTrainer": (DPOTrainer, DPOConfig)}


def of_trl(rank, folder, name, how):
    kind = EVERY[f"`{name}`"]
    base, config = TRL[name]
    found = []
    for trainer in (base, type("Mine", (BalancedMixin, base), {"max_tokens": 128})):
        own = told(how, rank, folder, config, **{"bf16": False, "max_steps": 4, "learning_rate": 1e-3} | kind.arguments)
        trains = trainer(model=kind.model(), args=own, train_dataset=kind.data(), **kind.more())
        trains.train()
        found.append(outcome(trains))
    return found


@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
@pytest.mark.parametrize("name", TRL)
def test_trainers_of_trl_learn_and_tell_what_stock_training_does(pools, tmp_path, name, how):
    for stock, own in both(pools, of_trl, tmp_path, name, how):
        assert stock.furthest(own) < 1e-6
        for told_of in ("loss", "grad_norm", "num_tokens"):
            assert own.column(told_of) == pytest.approx(stock.column(told_of), rel=1e-5)


def test_a_trainer_in_front_is_refused_when_the_class_is_made():
    with pytest.raises(InputError, match=r"Trainer in front of BalancedMixin trains without it; class Mine\(Bal"):
        type("Mine", (Trainer, BalancedMixin), {})
