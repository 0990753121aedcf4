"""Both mixins train on the samples of stock training and show callbacks, logs and checkpoints what that shows, however
an epoch ends and whoever deals to ranks."""

import json

import pytest
import torch
import torch.distributed as dist
from tiny_mixed import EVALUATED, answering, mixed, training
from tiny_trainers import both, outcome, whole
from torch.utils.data import DataLoader, DistributedSampler
from transformers import Trainer, TrainerCallback

pytestmark = pytest.mark.slow


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


def alike(notes, stock, within):
    assert [one[:-1] for one in notes] == [one[:-1] for one in stock]
    assert [one[-1] for one in notes] == pytest.approx([one[-1] for one in stock], rel=within)
    assert {event for event, *_, norm in stock if norm > 0} == {"on_pre_optimizer_step", "on_optimizer_step"}


class Shrinks(TrainerCallback):
    """Weights, behind each step and before the first."""

    def on_train_begin(self, *_, model, **__):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.99)

    def on_optimizer_step(self, *_, model, **__):
        self.on_train_begin(model=model)


class Seen(Trainer):
    """Notes what runs forward for a gradient, in which step, and logs how many samples training has seen."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known = {tuple(self.train_dataset[i]["input_ids"]): i for i in range(len(self.train_dataset))}
        self.seen = []

    def compute_loss(self, model, inputs, *args, **kwargs):
        if torch.is_grad_enabled():
            rows = zip(inputs["input_ids"].tolist(), inputs["attention_mask"].sum(1).tolist(), strict=True)
            self.seen += [(self.state.global_step, self.known[tuple(ids[:length])]) for ids, length in rows]
        return super().compute_loss(model, inputs, *args, **kwargs)

    def log(self, logs, *args, **kwargs):
        own = self.args
        logs["seen"] = self.state.global_step * own.train_batch_size * own.gradient_accumulation_steps
        super().log(logs, *args, **kwargs)


class Distributed(Seen):
    """A loader that nobody has prepared, which drops what is too little for all ranks, and is never told the epoch."""

    def get_train_dataloader(self):
        sampler = DistributedSampler(self.train_dataset, drop_last=True)
        return DataLoader(self.train_dataset, batch_size=2, sampler=sampler, collate_fn=self.data_collator)


def trained(name, rank, folder, samples, changed, base=Seen, *callbacks):
    """Events of a callback that is given, of one that is added, all ranks' samples, the outcome, and what is saved."""
    given, added, every = Notes(), Notes(), [None] * dist.get_world_size()
    usual = {"num_train_epochs": 2, "max_steps": -1, "optim": "sgd", "learning_rate": 0.1} | changed
    trainer = training(mixed(name, base), rank, folder / name, samples, given, *[own() for own in callbacks], **usual)
    trainer.add_callback(added)
    given.trainer = added.trainer = trainer
    trainer.train()
    assert trainer.args.gradient_accumulation_steps == changed.get("gradient_accumulation_steps", 2)
    dist.all_gather_object(every, trainer.seen)
    saved = []
    if "save_steps" in changed:
        checkpoint = folder / name / "checkpoint-2"
        saved.append(torch.load(checkpoint / "training_args.bin", weights_only=False).to_dict() | {"output_dir": ""})
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        told = ("train_batch_size", "max_steps", "num_train_epochs", "global_step", "epoch")
        saved += [sorted(state), [state[key] for key in told]]
    return given.found, added.found, sorted(one for own in every for one in own), outcome(trainer), saved


def compared(rank, folder, *asked):
    return [trained(name, rank, folder, *asked) for name in ("stock", "on demand", "balanced")]


SAVED = EVALUATED | {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
REBALANCED = {"train_sampling_strategy": "batch_rebalance"}
WAYS = {
    "accumulated": (24, SAVED | {"gradient_accumulation_steps": 3}),
    "not accumulated": (24, SAVED | {"gradient_accumulation_steps": 1}),
    "not clipped": (24, SAVED | {"max_grad_norm": 0}),
    "evaluated first": (24, SAVED | {"eval_on_start": True}),
    "checkpointed": (24, SAVED | {"gradient_checkpointing": True}),
    "weights that change behind a step": (24, {"max_steps": 3}, Seen, Shrinks),
    "a ragged epoch": (27, {}),
    "fewer samples than ranks need": (5, {}),
    "two samples": (2, {}),
    "ragged, dropped": (27, {"dataloader_drop_last": True}),
    "ragged, batches of both ranks split": (27, {"accelerator_config": {"split_batches": True}}),
    "ragged, in order": (29, {"train_sampling_strategy": "sequential"}),
    "ragged, by length": (29, {"train_sampling_strategy": "group_by_length"}),
    "rebalanced": (32, REBALANCED),
    "rebalanced and ragged": (27, REBALANCED),
    "rebalanced, with samples for half of the microbatches": (10, REBALANCED),
    "rebalanced, dropped": (27, REBALANCED | {"dataloader_drop_last": True}),
    "a loader of one's own": (27, {}, Distributed),
}


@pytest.mark.parametrize("way", WAYS)
def test_samples_events_logs_and_checkpoints_are_those_of_stock_training(pools, tmp_path, way):
    for (given, added, samples, stock, saved), *others in both(pools, compared, tmp_path, *WAYS[way]):
        for own_given, own_added, own_samples, own, own_saved in others:
            alike(own_given, given, 1e-5)
            alike(own_added, added, 1e-5)
            assert own_samples == samples
            assert own_saved == saved
            assert stock.furthest(own) < 1e-6
            assert own.column("seen") == stock.column("seen")
            for column in ("grad_norm", "epoch"):
                assert own.column(column) == pytest.approx(stock.column(column), rel=1e-5)
                assert stock.column(column)


def uneven(rank, folder):
    changed = {"accelerator_config": {"even_batches": False}, "num_train_epochs": 1}
    _, _, samples, _, _ = trained("on demand", rank, folder, 27, changed)
    return sorted(place for _, place in samples)


def test_an_epoch_without_repeats_has_each_sample_once(pools, tmp_path):
    """Of ranks with unequal numbers of batches, which stock training waits for for ever."""
    assert both(pools, uneven, tmp_path) == [[*range(27)]] * 2


def answered(rank, folder):
    found, prompts = [], [" ".join(map(str, range(1, 3 + i % 5))) for i in range(16)]
    for name in ("stock", "answers"):
        usual = {"max_steps": 2, "num_generations": 2, "max_completion_length": 8}
        trainer = answering(name, rank, folder / name, prompts, **usual)
        trainer.add_callback(notes := Notes())
        trainer.train()
        found.append(notes.found)
    return found


def test_events_are_those_of_stock_training_where_answers_are_generated(pools, tmp_path):
    for stock, own in both(pools, answered, tmp_path):
        alike(own, stock, 1e-3)
