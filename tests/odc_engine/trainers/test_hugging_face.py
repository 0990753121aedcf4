"""The Trainer of transformers over accelerate's FSDP2: on demand it learns what it learns stock."""

import warnings
from typing import ClassVar

import pytest
import torch
from tiny_trainers import (
    FSDP,
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
from transformers import Trainer, TrainerCallback

from odc_engine.trainers import OnDemandMixin
from odc_engine.trainers.refusals import check_model
from odcsim.errors import InputError

pytestmark = pytest.mark.slow


class OnDemand(OnDemandMixin, in_order(Trainer)):
    max_tokens = 64


KINDS = {"stock": in_order(Trainer), "on-demand": OnDemand}


def trainer_of(kind, rank, folder, samples=48, model=llama, **changed):
    evaluated = {"eval_dataset": Texts(9)} if "eval_strategy" in changed else {}
    own = arguments(rank, folder, **changed)
    return KINDS[kind](model=model(), args=own, train_dataset=Texts(samples), data_collator=collate, **evaluated)


def trained(kind, rank, folder, **asked) -> Trained:
    trainer = trainer_of(kind, rank, folder, **asked)
    trainer.train()
    return outcome(trainer)


def compared(rank, folder, asked):
    return [trained(kind, rank, folder / kind, **asked) for kind in KINDS]


def test_weights_losses_and_norms_are_those_of_stock_training(pools, tmp_path):
    changed = {"max_steps": 20, "max_grad_norm": 0.5, "learning_rate": 1e-3}
    for stock, on_demand in both(pools, compared, tmp_path, changed):
        assert stock.furthest(on_demand) < 1e-6
        for name in ("loss", "grad_norm", "epoch", "learning_rate", "train_loss"):
            assert on_demand.column(name) == pytest.approx(stock.column(name), rel=1e-5)
        assert len(on_demand.column("grad_norm")) == 20


def counted(rank, folder, asked):
    """How many microbatches each minibatch had here, too."""
    trainer = trainer_of("on-demand", rank, folder, **asked)
    counts, step = [], trainer.training_step

    def noted(model, inputs, items):
        counts.append(sum(part.samples > 0 for _, part in inputs["microbatches"]))
        return step(model, inputs, items)

    trainer.training_step = noted
    trainer.train()
    return outcome(trainer), counts


def test_devices_run_unlike_numbers_of_microbatches_and_one_none(pools, tmp_path):
    """The last minibatch of both epochs is a single sample, right behind an evaluation."""
    changed = {"max_steps": -1, "num_train_epochs": 2, "optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0}
    changed |= {"lr_scheduler_type": "constant", "eval_strategy": "steps", "eval_steps": 2, "samples": 17}
    changed |= {"accelerator_config": {"even_batches": False}}  # else accelerate repeats samples at the end
    weights, losses = alone(17, 6)
    found = both(pools, counted, tmp_path, changed)
    (one, ones), (other, others) = found
    assert [ones[i] + others[i] for i in (2, 5)] == [1, 1]
    assert any(mine != its for mine, its in zip(ones[:2], others[:2], strict=True))
    for trained in (one, other):
        assert trained.furthest(Trained(weights, [])) < 1e-6
        assert trained.column("loss") == pytest.approx(losses, rel=1e-5)


MODES = {
    "evaluation": ({"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}, 1e-6),
    "gradient checkpointing": ({"gradient_checkpointing": True}, 1e-6),
    "fsdp's checkpointing": ({"fsdp_config": FSDP | {"activation_checkpointing": True}}, 1e-6),
    "whole after forward": ({"fsdp_config": FSDP | {"reshard_after_forward": False}}, 1e-6),
    "compiled": ({"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 2}, 1e-6),
    "bf16": ({"bf16": True, "optim": "sgd", "learning_rate": 0.1}, 1e-3),
    "tokens counted": ({"include_num_input_tokens_seen": "non_padding"}, 1e-6),
    "tied embeddings": ({"model": tied}, 1e-6),
    "adapters": ({"model": adapted}, 1e-6),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns_what_stock_training_learns(pools, tmp_path, mode):
    changed, bound = MODES[mode]
    for stock, on_demand in both(pools, compared, tmp_path, {"learning_rate": 1e-3, "max_steps": 4} | changed):
        assert stock.furthest(on_demand) < bound
        for name in ("loss", "grad_norm", "eval_loss", "num_input_tokens_seen"):
            assert on_demand.column(name) == pytest.approx(stock.column(name), rel=10 * bound)


def saved(rank, folder, asked):
    """Trained in one go; then from its checkpoint in the middle of an epoch; then from stock training's checkpoint."""
    whole = trained("on-demand", rank, folder, **asked)
    again = trainer_of("on-demand", rank, folder, **asked)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    trained("stock", rank, folder / "stock", **asked)
    other = trainer_of("on-demand", rank, folder, **asked)
    other.train(resume_from_checkpoint=str(folder / "stock/checkpoint-4"))
    return whole, outcome(again), outcome(other)


def test_a_checkpoint_is_where_training_goes_on(pools, tmp_path):
    asked = {"save_strategy": "steps", "save_steps": 4, "samples": 24, "learning_rate": 1e-3}
    for whole, *resumed in both(pools, saved, tmp_path, asked):
        for one in resumed:
            assert whole.furthest(one) < 1e-6
            assert one.column("loss")[-2:] == pytest.approx(whole.column("loss")[-2:], rel=1e-5)


def best_of(rank, folder, asked):
    trainer = trainer_of("on-demand", rank, folder, **asked)
    trainer.train()
    return trainer.state.best_global_step, trainer.evaluate()["eval_loss"], outcome(trainer).column("eval_loss")


def test_the_best_model_is_loaded_at_the_end(pools, tmp_path):
    """The best one is that of the highest loss here, which is the first."""
    asked = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    asked |= {"load_best_model_at_end": True, "greater_is_better": True, "metric_for_best_model": "eval_loss"}
    for step, loss, losses in both(pools, best_of, tmp_path, asked):
        assert step == 2
        assert loss == pytest.approx(losses[0])
        assert losses[0] > losses[2] + 0.01


def means(rank, folder):
    """Losses that are means over a microbatch's samples, in microbatches of two samples and of one."""
    trainers = [
        trainer_of(
            kind,
            rank,
            folder,
            samples=6,
            max_steps=2,
            optim="sgd",
            learning_rate=0.5,
            per_device_train_batch_size=3,
            gradient_accumulation_steps=1,
        )
        for kind in KINDS
    ]
    for trainer in trainers:
        trainer.model_accepts_loss_kwargs = False
        trainer.train_dataset.texts = [(text * 9)[:30] for text in trainer.train_dataset.texts]
        trainer.max_tokens = 60
        trainer.train()
    return [outcome(trainer) for trainer in trainers]


def test_a_mean_loss_weighs_what_its_samples_weigh(pools, tmp_path):
    for stock, on_demand in both(pools, means, tmp_path):
        assert stock.furthest(on_demand) < 1e-6
        assert on_demand.column("loss") == pytest.approx(stock.column("loss"), rel=1e-5)


def told_of_stock(rank, folder):
    """A mean over a microbatch's labels, three steps of it."""
    trainer = trainer_of("on-demand", rank, folder, max_steps=3)
    trainer.model_accepts_loss_kwargs = False
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer.train()
    return sum("in the stock Trainer" in str(one.message) for one in told)


def test_the_stock_trainers_gradient_is_taken_once_where_it_is_another_one(pools, tmp_path):
    assert both(pools, told_of_stock, tmp_path) == [1, 1]


def interrupted(rank, folder):
    """A callback fails in the middle of training on all devices; what follows is stock training of the same model."""

    class Fails(TrainerCallback):
        def on_pre_optimizer_step(self, _, state, *__, **___):
            if state.global_step == 2:
                raise KeyError("in the middle")

    trainer = trainer_of("on-demand", rank, folder)
    trainer.add_callback(failing := Fails())
    with pytest.raises(KeyError, match="in the middle"):
        trainer.train()
    trainer.remove_callback(failing)
    trainer.model(**collate([Texts(3)[rank]])).loss.backward()
    trainer.model.zero_grad()
    trainer.train()
    return outcome(trainer).column("loss")


def test_training_that_was_interrupted_leaves_stock_communication_and_can_begin_again(pools, tmp_path):
    for losses in both(pools, interrupted, tmp_path):
        assert len(losses) == 6
        assert losses[0] < 3.93


class Halves(TrainerCallback):
    """The head, after two steps."""

    def __init__(self, trainer, publishes):
        self.trainer, self.publishes = trainer, publishes

    def on_step_end(self, _, state, *__, model, **___):
        if state.global_step == 2:
            with torch.no_grad():
                model.get_output_embeddings().weight.mul_(0.5)
            if self.publishes:
                self.trainer.publish_weights()


def halved(rank, folder, kind, publishes):
    trainer = trainer_of(kind, rank, folder, learning_rate=1e-3)
    trainer.add_callback(Halves(trainer, publishes))
    try:
        trainer.train()
    except InputError as error:
        return str(error)
    return outcome(trainer)


def test_weights_that_a_callback_changes_are_published_by_the_trainer_or_refused(pools, tmp_path):
    stock = both(pools, halved, tmp_path / "stock", "stock", False)
    for one, other in zip(stock, both(pools, halved, tmp_path / "right", "on-demand", True), strict=True):
        assert one.furthest(other) < 1e-6
    told = both(pools, halved, tmp_path / "refused", "on-demand", False)
    assert any(words.endswith("; call the trainer's publish_weights() on all devices") for words in told)


def looked(rank, folder, where):
    """A callback evaluates or looks at gradients where it is too early."""

    class Looks(TrainerCallback):
        def on_pre_optimizer_step(self, *_, model, **__):
            sum(p.grad.norm() for p in model.parameters() if p.grad is not None)
            if where == "before":
                model(**collate([Texts(3)[rank]]))

        def on_step_end(self, *_, model, **__):
            with torch.no_grad():
                model(**collate([Texts(3)[rank]]))

    trainer = trainer_of("on-demand", rank, folder)
    trainer.add_callback(Looks())
    try:
        trainer.train()
    except InputError as error:
        return str(error)
    return outcome(trainer)


def test_a_callback_evaluates_when_the_trainer_has_stepped(pools, tmp_path):
    for words in both(pools, looked, tmp_path / "before", "before"):
        assert words.endswith("; evaluate when the trainer has stepped, as in on_step_end")
    for ended in both(pools, looked, tmp_path / "after", "after"):
        assert len(ended.column("loss")) == 6


REFUSED = {
    "the loss depends on which rank": {"average_tokens_across_devices": False},
    "fp16": {"fp16": True},
    "auto_find_batch_size": {"auto_find_batch_size": True},
}


def refused(rank, folder):
    problems = {}
    for words, changed in REFUSED.items():
        try:
            trained("on-demand", rank, folder, **changed)
        except InputError as error:
            problems[words] = str(error)
    return problems


def test_settings_that_would_train_otherwise_are_refused_with_the_way_out(pools, tmp_path):
    for problems in both(pools, refused, tmp_path):
        assert problems.keys() == REFUSED.keys()
        for words, problem in problems.items():
            assert words in problem
            assert "; " in problem


def test_a_model_that_fsdp2_does_not_shard_is_refused():
    with pytest.raises(InputError, match=r"Linear is not sharded by FSDP2; .*'version': 2"):
        check_model(torch.nn.Linear(2, 2))


def test_accelerates_file_takes_no_keys_but_its_own(tmp_path):
    """So it can turn FSDP2 on, and nothing else of ours."""
    from accelerate.commands.config.config_args import ClusterConfig

    usual = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'no'\nuse_cpu: true\n"
    usual += "debug: false\nfsdp_config:\n  fsdp_version: 2\n"
    (tmp_path / "own.yaml").write_text(usual)
    assert ClusterConfig.from_yaml_file(str(tmp_path / "own.yaml")).fsdp_config == {"fsdp_version": 2}
    (tmp_path / "ours.yaml").write_text(usual + "on_demand: true\n")
    with pytest.raises(ValueError, match=r"had unknown keys \(\['on_demand'\]\)"):
        ClusterConfig.from_yaml_file(str(tmp_path / "ours.yaml"))


class ShortOfMemory(OnDemand):
    """Has none for a microbatch of more than two samples, once its forward pass has run."""

    max_tokens = 200
    halved: ClassVar[list[int]] = []  # not a note of the trainer, which forgets what a failed pass has noted

    def compute_loss(self, model, inputs, **more):
        rows = len(inputs["input_ids"])
        loss = super().compute_loss(model, inputs, **more)
        if rows > 2 and torch.is_grad_enabled():
            self.halved.append(rows)
            raise torch.OutOfMemoryError("as if")
        return loss


def short_of_memory(rank, folder):
    found = []
    for name, kind in {"stock": in_order(Trainer), "short": ShortOfMemory}.items():
        own = arguments(rank, folder / name, learning_rate=1e-3)
        trainer = kind(model=llama(), args=own, train_dataset=Texts(48), data_collator=collate)
        trainer.train()
        found.append(outcome(trainer))
    return *found, len(ShortOfMemory.halved)


def test_a_microbatch_without_memory_is_run_in_halves(pools, tmp_path):
    every = both(pools, short_of_memory, tmp_path)
    assert sum(halved for *_, halved in every) > 2
    for stock, on_demand, _ in every:
        assert stock.furthest(on_demand) < 1e-6
        assert on_demand.column("loss") == pytest.approx(stock.column("loss"), rel=1e-5)
