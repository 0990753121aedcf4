"""The Trainer of transformers on demand: what callbacks may do, what is refused, microbatches without memory."""

from typing import ClassVar

import pytest
import torch
import work
from tiny_mixed import mixed, training
from tiny_trainers import Texts, both, collate, in_order, outcome
from transformers import Trainer, TrainerCallback

from odc_engine.trainers.refusals import check_model
from odcsim.errors import InputError

pytestmark = pytest.mark.slow


STOCK = in_order(Trainer)
OnDemand = mixed("on demand", STOCK)


def interrupted(rank, folder):
    """A callback fails in the middle of training on all devices; what follows is stock training of the same model."""

    class Fails(TrainerCallback):
        def on_pre_optimizer_step(self, _, state, *__, **___):
            if state.global_step == 2:
                raise KeyError("in the middle")

    trainer = training(OnDemand, rank, folder, 48, failing := Fails())
    with pytest.raises(KeyError):
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

    trainer = None

    def on_step_end(self, _, state, *__, model, **___):
        if state.global_step == 2:
            with torch.no_grad():
                model.get_output_embeddings().weight.mul_(0.5)
            if self.trainer:
                self.trainer.publish_weights()


def halved(rank, folder, kind, publishes):
    """Nothing where it is refused."""
    trainer = training(mixed(kind, STOCK), rank, folder, 48, halves := Halves(), learning_rate=1e-3)
    halves.trainer = trainer if publishes else None
    try:
        trainer.train()
    except InputError:
        return None
    return outcome(trainer)


def test_weights_that_a_callback_changes_are_published_by_the_trainer_or_refused(pools, tmp_path):
    stock = both(pools, halved, tmp_path / "stock", "stock", False)
    for one, other in zip(stock, both(pools, halved, tmp_path / "right", "on demand", True), strict=True):
        assert one.furthest(other) < 1e-6
    assert None in both(pools, halved, tmp_path / "refused", "on demand", False)


def looked(rank, folder, where):
    """A callback evaluates or looks at gradients where it is too early. The steps that there were."""

    class Looks(TrainerCallback):
        def on_pre_optimizer_step(self, *_, model, **__):
            sum(p.grad.norm() for p in model.parameters() if p.grad is not None)
            if where == "before":
                model(**collate([Texts(3)[rank]]))

        def on_step_end(self, *_, model, **__):
            with torch.no_grad():
                model(**collate([Texts(3)[rank]]))

    trainer = training(OnDemand, rank, folder, 48, Looks())
    try:
        trainer.train()
    except InputError:
        return 0
    return len(outcome(trainer).column("loss"))


def test_a_callback_evaluates_when_the_trainer_has_stepped(pools, tmp_path):
    assert both(pools, looked, tmp_path, "before") == [0] * 2
    assert both(pools, looked, tmp_path, "after") == [6] * 2


REFUSED = [{"average_tokens_across_devices": False}, {"fp16": True}, {"auto_find_batch_size": True}]


def refused(rank, folder):
    return [work.refused(lambda changed=c: training(OnDemand, rank, folder, **changed).train()) for c in REFUSED]


def test_settings_that_would_train_otherwise_are_refused(pools, tmp_path):
    assert both(pools, refused, tmp_path) == [[True] * len(REFUSED)] * 2
    with pytest.raises(InputError):
        check_model(torch.nn.Linear(2, 2))


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
    for kind in (STOCK, ShortOfMemory):
        trainer = training(kind, rank, folder / kind.__name__, 48, learning_rate=1e-3)
        trainer.train()
        found.append(outcome(trainer))
    return *found, len(ShortOfMemory.halved)


def test_a_microbatch_without_memory_is_run_in_halves(pools, tmp_path):
    every = both(pools, short_of_memory, tmp_path)
    assert sum(halved for *_, halved in every) > 2
    for stock, on_demand, _ in every:
        assert stock.furthest(on_demand) < 1e-6
        assert on_demand.column("loss") == pytest.approx(stock.column("loss"), rel=1e-5)


def test_accelerates_file_takes_no_keys_but_its_own(tmp_path):
    """So it can turn FSDP2 on, and nothing else of ours."""
    from accelerate.commands.config.config_args import ClusterConfig

    usual = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'no'\nuse_cpu: true\n"
    (tmp_path / "own.yaml").write_text(usual := usual + "debug: false\nfsdp_config:\n  fsdp_version: 2\n")
    assert ClusterConfig.from_yaml_file(str(tmp_path / "own.yaml")).fsdp_config == {"fsdp_version": 2}
    (tmp_path / "ours.yaml").write_text(usual + "on_demand: true\n")
    with pytest.raises(ValueError, match="on_demand"):
        ClusterConfig.from_yaml_file(str(tmp_path / "ours.yaml"))
