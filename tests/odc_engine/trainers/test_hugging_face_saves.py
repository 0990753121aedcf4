"""What accelerate saves by torch.distributed.checkpoint, under the Trainer: of optimizers that have no state, too."""

import pytest
from tiny_trainers import Texts, arguments, both, collate, in_order, llama, outcome
from transformers import Trainer, TrainerCallback

from odc_engine.trainers import OnDemandMixin

pytestmark = pytest.mark.slow


class OnDemand(OnDemandMixin, in_order(Trainer)):
    max_tokens = 64


class FromTheStart(TrainerCallback):
    """Saves before the first step."""

    def on_epoch_begin(self, args, state, control, **_):  # noqa: ARG002
        if state.global_step == 0:
            self.trainer._save_checkpoint(self.trainer.model, None)


def trained(kind, rank, folder, resume=None, **asked):
    callback = FromTheStart()
    trainer = kind(
        model=llama(),
        args=arguments(rank, folder, save_strategy="steps", save_steps=2, max_steps=6, **asked),
        train_dataset=Texts(48),
        data_collator=collate,
        callbacks=[] if resume else [callback],
    )
    callback.trainer = trainer
    trainer.train(resume_from_checkpoint=resume)
    return outcome(trainer)


def saved(rank, folder, asked):
    stock, whole = [trained(kind, rank, folder / name, **asked) for name, kind in KINDS.items()]
    if asked["optim"] == "sgd":  # torch saves no state that it would load again
        return stock, whole, whole
    return stock, whole, trained(OnDemand, rank, folder / "on-demand", str(folder / "on-demand/checkpoint-4"), **asked)


KINDS = {"stock": in_order(Trainer), "on-demand": OnDemand}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw_torch"])
def test_training_that_is_saved_goes_on_and_resumes_as_stock(pools, tmp_path, optimizer):
    for stock, on_demand, resumed in both(pools, saved, tmp_path, {"optim": optimizer, "learning_rate": 1e-3}):
        assert stock.furthest(on_demand) < 1e-6
        assert stock.furthest(resumed) < 1e-6
