"""Balanced, over their own collectives: losses are right or refused, devices run as many microbatches and meet once."""

from typing import ClassVar

import pytest
import torch
from losses import EVERY
from losses.followed import balanced
from losses.judged import judged, without_figures
from losses_page import row
from scripts import ROOT
from tiny_mixed import EVALUATED, mixed, training
from tiny_trainers import DDP, IGNORED, Texts, Trained, alone, both, in_order, outcome
from transformers import Trainer

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
SAMPLED = [sentence for sentence, kind in EVERY.items() if not kind.rollouts]
# Refused in other words than on demand, where FSDP2's own communication is not there.
OTHERWISE = "`super().compute_loss`, and a penalty on weights by `to_local()`"


@pytest.mark.drawn(20)
@pytest.mark.parametrize("sentence", SAMPLED)
def test_losses_are_right_or_refused_as_on_demand(pools, tmp_path, sentence):
    verdict = judged(pools, tmp_path, sentence, balanced)
    assert verdict.wrong == ()
    if sentence == OTHERWISE:
        assert verdict.refused
    else:
        own = row(sentence, verdict).replace("BalancedTrainer", "OnDemandTrainer")
        assert without_figures(own) in map(without_figures, PAGE.splitlines())


def watched(rank, folder, name, asked):
    class Watched(mixed(name, in_order(Trainer))):
        """Notes of each forward pass with gradients whether gradients meet in it, and how many there are."""

        # Of the class: the trainer forgets its own notes of what counts for nothing.
        steps: ClassVar[list[tuple[list[bool], int, int]]] = []
        meets: ClassVar[list[bool]] = []
        noted = 0

        def compute_loss(self, model, inputs, **more):
            if torch.is_grad_enabled():
                self.meets.append(bool(getattr(model, "require_backward_grad_sync", True)))
                self.noted += 1
            return super().compute_loss(model, inputs, **more)

        def training_step(self, model, inputs, items=None):
            self.noted = 0
            self.meets.clear()
            loss = super().training_step(model, inputs, items)
            own = sum(part.samples > 0 for _, part in inputs["microbatches"])
            self.steps.append(([*self.meets], own, self.noted))
            return loss

    trainer = training(Watched, rank, folder, 17, **asked)
    trainer.train()
    return outcome(trainer), trainer.steps


@pytest.mark.parametrize("name", ["on demand", "balanced"])
def test_devices_run_unlike_numbers_of_microbatches_or_as_many_and_meet_in_the_last(pools, tmp_path, name):
    """The last minibatch of both epochs is a single sample, right behind an evaluation: one device runs none, or what
    counts for nothing."""
    changed = {"max_steps": -1, "num_train_epochs": 2, "optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0}
    changed |= {"lr_scheduler_type": "constant"} | EVALUATED | (DDP if name == "balanced" else {})
    changed |= {"accelerator_config": {"even_batches": False}}  # else accelerate repeats samples at the end
    weights, losses = alone(17, 6)
    (one, ones), (other, others) = both(pools, watched, tmp_path, name, changed)
    assert [own + theirs for (_, own, _), (_, theirs, _) in zip(ones, others, strict=True)][2::3] == [1, 1]
    if name == "on demand":
        assert any(own != theirs for (_, own, _), (_, theirs, _) in zip(ones[:2], others[:2], strict=True))
    else:
        for (mine, own, noted), (its, theirs, told_of) in zip(ones, others, strict=True):
            assert mine == its == [False] * (len(mine) - 1) + [True]
            assert max(own, theirs) == len(mine)
            assert (noted, told_of) == (own, theirs)
    for trained in (one, other):
        assert trained.furthest(Trained(weights, [])) < 1e-6
        assert trained.column("loss") == pytest.approx(losses, rel=1e-5)


class Spoken(Texts):
    """All but long texts have no label, and so no mean over labels."""

    def __getitem__(self, i):
        sample = super().__getitem__(i)
        return sample if len(self.texts[i]) > 40 else sample | {"labels": [IGNORED] * len(self.texts[i])}


class Means(mixed("balanced", in_order(Trainer))):
    """Of the tokens of a microbatch that have a label."""

    mean_over = "next_labels"

    def compute_loss(self, model, inputs, **_):
        logits, labels = model(input_ids=inputs["input_ids"]).logits[:, :-1], inputs["labels"][:, 1:]
        own = labels != IGNORED
        chosen = logits.log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
        return -(chosen * own).sum() / own.sum()


def means(rank, folder):
    trainer = training(Means, rank, folder, **DDP, max_steps=6, learning_rate=1e-3)
    trainer.train_dataset = Spoken(17)
    trainer.train()
    return outcome(trainer)


def test_what_stands_in_has_a_loss(pools, tmp_path):
    """A microbatch without a label is not run, while another device runs one: else weights were no numbers."""
    for trained in both(pools, means, tmp_path):
        assert all(torch.isfinite(weight).all() for weight in trained.weights.values())
        assert all(loss == loss for loss in trained.column("loss"))
        assert len(trained.column("loss")) == 6
