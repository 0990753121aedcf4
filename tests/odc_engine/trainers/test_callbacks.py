"""Callbacks, logs and checkpoints of both mixins show what they show in stock training, whenever a callback came."""

import json

import pytest
import torch
from tiny_mixed import EVALUATED, answering, mixed, training
from tiny_trainers import both, outcome, whole
from transformers import Trainer, TrainerCallback

pytestmark = pytest.mark.slow

KINDS = ("stock", "on demand", "balanced")


class Notes(TrainerCallback):
    """Of each event, in order: the step, the samples of one, and the norm of gradients, or -1 without any."""

    def __init__(self):
        self.trainer, self.found = None, []

    def __getattribute__(self, name):
        if name == "on_substep_end" or not name.startswith("on_"):
            return super().__getattribute__(name)  # ranks have their own numbers of microbatches
        return lambda args, state, *_, model, **__: self.note(name, args, state, model)

    def note(self, event, args, state, model):
        grads = [whole(p.grad) for p in model.parameters() if p.grad is not None]
        norm = float(torch.stack([grad.double().norm() for grad in grads]).norm()) if grads else -1.0
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        total = self.trainer and self.trainer.get_total_train_batch_size(args)
        self.found.append((event, state.global_step, samples, total, norm))


class Logs(Trainer):
    """A log line of one's own with the number of samples that training has seen."""

    def log(self, logs, *args, **kwargs):
        own = self.args
        logs["seen"] = self.state.global_step * own.train_batch_size * own.gradient_accumulation_steps
        super().log(logs, *args, **kwargs)


def noted(rank, folder, changed):
    """Events of a callback that is given, of one that is added, log lines, and what is saved."""
    found = {}
    for name in KINDS:
        given, added = Notes(), Notes()
        usual = EVALUATED | {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        trainer = training(mixed(name, Logs), rank, folder / name, 24, given, **usual | changed)
        trainer.add_callback(added)
        given.trainer = added.trainer = trainer
        trainer.train()
        assert trainer.args.gradient_accumulation_steps == changed.get("gradient_accumulation_steps", 2)
        saved = folder / name / "checkpoint-2"
        settings = torch.load(saved / "training_args.bin", weights_only=False).to_dict()
        state = json.loads((saved / "trainer_state.json").read_text())
        found[name] = given.found, added.found, outcome(trainer), settings, state
    return found


WAYS = {
    "accumulated": {"gradient_accumulation_steps": 3},
    "not accumulated": {"gradient_accumulation_steps": 1},
    "not clipped": {"max_grad_norm": 0},
    "evaluated first": {"eval_on_start": True},
    "checkpointed": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_events_logs_and_checkpoints_show_what_stock_training_shows(pools, tmp_path, way):
    for found in both(pools, noted, tmp_path, WAYS[way]):
        given, added, stock, settings, state = found["stock"]
        assert {event for event, *_, norm in given if norm > 0} == {"on_pre_optimizer_step", "on_optimizer_step"}
        for name in KINDS[1:]:
            own_given, own_added, trained, own_settings, own_state = found[name]
            for theirs, own in ((given, own_given), (added, own_added)):
                assert [one[:-1] for one in own] == [one[:-1] for one in theirs]
                assert [one[-1] for one in own] == pytest.approx([one[-1] for one in theirs], rel=1e-5)
            assert trained.column("seen") == stock.column("seen")
            assert own_settings | {"output_dir": ""} == settings | {"output_dir": ""}
            assert own_state.keys() == state.keys()
            for key in ("train_batch_size", "max_steps", "num_train_epochs", "global_step", "epoch"):
                assert own_state[key] == state[key]


def answered(rank, folder):
    found, prompts = [], [" ".join(map(str, range(1, 3 + i % 5))) for i in range(16)]
    for name in ("stock", "answers"):
        usual = {"max_steps": 2, "num_generations": 2, "max_completion_length": 8}
        trainer = answering(name, rank, folder / name, prompts, **usual)
        trainer.add_callback(notes := Notes())
        trainer.train()
        found.append(notes.found)
    return found


def test_so_they_do_where_answers_are_generated(pools, tmp_path):
    for stock, own in both(pools, answered, tmp_path):
        assert [one[:-1] for one in own] == [one[:-1] for one in stock]
        assert [one[-1] for one in own] == pytest.approx([one[-1] for one in stock], rel=1e-3)


class Shrinks(TrainerCallback):
    """Weights, behind each step and before the first."""

    def on_train_begin(self, *_, model, **__):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.99)

    def on_optimizer_step(self, *_, model, **__):
        self.on_train_begin(model=model)


def shrunk(rank, folder):
    found = []
    for name in KINDS:
        sgd = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 3}
        trainer = training(name, rank, folder / name, 24, Shrinks(), **sgd)
        trainer.train()
        found.append(outcome(trainer))
    return found


def test_weights_that_change_behind_a_step_are_published_with_it(pools, tmp_path):
    for stock, *others in both(pools, shrunk, tmp_path):
        assert all(stock.furthest(own) < 1e-6 for own in others)
