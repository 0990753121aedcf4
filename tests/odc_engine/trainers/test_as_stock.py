"""On demand or balanced, over FSDP2 or DDP, trainers of transformers and TRL learn and tell what they do stock."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from peft import LoraConfig
from tiny_mixed import EVALUATED, MIXINS, in_memory
from tiny_trainers import DDP, FSDP, Texts, adapted, arguments, both, collate, in_order, llama, outcome, tied, words
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

pytestmark = pytest.mark.slow

EVERYWHERE = (("on demand", "FSDP2"), ("balanced", "FSDP2"), ("balanced", "DDP"))
ON_DEMAND = EVERYWHERE[:1]


def texts(count):
    samples = [Texts(count)[i] for i in range(count)]
    return in_memory(**{name: [one[name] for one in samples] for name in ("input_ids", "labels")})


def pairs(count):
    """Prompts with a better and a worse answer."""
    draw = np.random.default_rng(3)
    text = [" ".join(map(str, draw.integers(1, 49, int(2 + min(draw.exponential(6), 23))))) for _ in range(3 * count)]
    chosen, rejected = ([f" {one}" for one in text[i::3]] for i in (1, 2))
    return in_memory(prompt=text[::3], chosen=chosen, rejected=rejected)


OF_TRL = {"bf16": False, "max_length": None}
TRAINERS: dict[str, tuple[type, Any, dict[str, Any]]] = {
    "Trainer": (Trainer, None, {}),
    "SFTTrainer": (SFTTrainer, SFTConfig, OF_TRL | {"dataset_kwargs": {"skip_prepare_dataset": True}}),
    "DPOTrainer": (DPOTrainer, DPOConfig, OF_TRL | {"learning_rate": 3e-4}),
}
LORA = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")}


@dataclass(frozen=True)
class Way:
    """`changed`: arguments, `more`: of the trainer itself, `tells`: columns of its log beside the usual."""

    name: str = "Trainer"
    changed: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    where: tuple[tuple[str, str], ...] = EVERYWHERE
    model: Callable[[], Any] = llama
    bound: float = 1e-6
    tells: tuple[str, ...] = ()


REDUCED = {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}
TELLS = ("loss", "grad_norm", "epoch", "learning_rate", "train_loss", "num_tokens", "num_input_tokens_seen")
OF_SFT = ("eval_loss", "eval_mean_token_accuracy")
OF_DPO = ("rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected")
WAYS = {
    "20 steps, clipped": Way(changed={"max_steps": 20, "max_grad_norm": 0.5}),
    "evaluation": Way(changed=EVALUATED | {"eval_on_start": True}, tells=("eval_loss",)),
    "gradient checkpointing": Way(changed={"gradient_checkpointing": True}),
    "compiled": Way(changed={"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 2}),
    "bf16": Way(changed={"bf16": True, "optim": "sgd", "learning_rate": 0.1}, bound=1e-3),
    "tokens counted": Way(changed={"include_num_input_tokens_seen": "non_padding"}),
    "tied embeddings": Way(model=tied),
    "adapters": Way(model=adapted),
    "fsdp's checkpointing": Way(changed={"fsdp_config": FSDP | {"activation_checkpointing": True}}, where=ON_DEMAND),
    "whole after forward": Way(changed={"fsdp_config": FSDP | {"reshard_after_forward": False}}, where=ON_DEMAND),
    "reduced in each microbatch": Way(changed=REDUCED, where=EVERYWHERE[1:]),
    "SFT": Way("SFTTrainer", {"max_steps": 20}),
    "SFT of adapters": Way("SFTTrainer", more=LORA, where=ON_DEMAND),
    "SFT without padding": Way("SFTTrainer", {"padding_free": True}, where=ON_DEMAND),
    "SFT, evaluated": Way("SFTTrainer", EVALUATED | {"gradient_checkpointing": True}, where=ON_DEMAND, tells=OF_SFT),
    "DPO": Way("DPOTrainer", {"max_steps": 20}, tells=OF_DPO),
    "DPO of adapters": Way("DPOTrainer", {"max_steps": 8}, LORA, ON_DEMAND, tells=OF_DPO),
    "DPO, length-normalized": Way("DPOTrainer", {"loss_type": "sigmoid_norm"}, where=ON_DEMAND, tells=OF_DPO),
}


def data_of(name, evaluated):
    if name == "DPOTrainer":
        return {"train_dataset": pairs(24), "processing_class": words()}
    of_trl = name == "SFTTrainer"
    samples, more = (texts, {"processing_class": words()}) if of_trl else (Texts, {"data_collator": collate})
    return more | {"train_dataset": samples(48)} | ({"eval_dataset": samples(9)} if evaluated else {})


def made(way, mixin, over, rank, folder):
    """Transformers writes into what it is given."""
    base, config, usual = TRAINERS[way.name]
    changed = {"learning_rate": 1e-3, "max_steps": 4} | usual | over | deepcopy(way.changed)
    kind = type("Own", (*MIXINS[mixin], in_order(base)), {"max_tokens": 64 if base is Trainer else 128})
    given = data_of(way.name, "eval_steps" in changed) | way.more
    if base is DPOTrainer and not way.more:
        given["ref_model"] = llama()
    return kind(model=way.model(), args=arguments(rank, folder, config, **changed), **given)


def compared(rank, folder, name, mixin, over):
    """What both learn, and how many microbatches each minibatch had here."""
    found, counts = [], []
    for kind in ("stock", mixin):
        trainer = made(WAYS[name], kind, DDP if over == "DDP" else {}, rank, folder / kind)
        step = trainer.training_step

        def noted(model, inputs, *more, step=step):
            counts.append(len(inputs.get("microbatches", ())))
            return step(model, inputs, *more)

        trainer.training_step = noted
        trainer.train()
        assert isinstance(trainer.model_wrapped, FSDPModule) == (over == "FSDP2")
        found.append(outcome(trainer))
    return *found, counts


EACH = [(name, *where) for name, way in WAYS.items() for where in way.where]


@pytest.mark.parametrize(("name", "mixin", "over"), EACH, ids=map(", ".join, EACH))
def test_it_learns_and_tells_what_stock_training_does(pools, tmp_path, name, mixin, over):
    way = WAYS[name]
    every = both(pools, compared, tmp_path, name, mixin, over)
    for stock, own, _ in every:
        assert stock.furthest(own) < way.bound
        for column in TELLS + way.tells:
            assert own.column(column) == pytest.approx(stock.column(column), rel=max(1e-4, 10 * way.bound), abs=1e-5)
        assert all(stock.column(column) for column in ("loss", "grad_norm", *way.tells))
        for column in ("entropy", "mean_token_accuracy"):
            assert len(own.column(column)) == len(stock.column(column))
    assert every[0][2] != every[1][2] or mixin == "balanced" or way.name != "DPOTrainer"


def test_metrics_are_means_over_the_tokens_of_the_minibatch(pools, tmp_path):
    """As stock training has them where one microbatch holds all samples of a device."""
    for stock, own, _ in both(pools, compared, tmp_path, "one microbatch", *EVERYWHERE[0]):
        for name in ("entropy", "mean_token_accuracy", "num_tokens"):
            assert len(own.column(name)) == 4
            assert own.column(name) == pytest.approx(stock.column(name), rel=1e-5)


WHOLE = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
WAYS["one microbatch"] = Way("SFTTrainer", WHOLE, where=())


class FromTheStart(TrainerCallback):
    """Saves before the first step, of optimizers that have no state, too."""

    def on_epoch_begin(self, args, state, control, **_):  # noqa: ARG002
        if state.global_step == 0:
            self.trainer._save_checkpoint(self.trainer.model, None)


def saved(rank, folder, mixin, over, optimizer):
    """Trained stock and otherwise in one go; then from the checkpoints of both in the middle of an epoch."""
    asked = {"save_strategy": "steps", "save_steps": 4, "max_steps": 6, "optim": optimizer}
    asked |= DDP if over == "DDP" else {}
    found, starts = [], [("stock", None), (mixin, None)]
    if optimizer != "sgd":  # torch saves no state that it would load again
        starts += [(mixin, folder / kind / "checkpoint-4") for kind in (mixin, "stock")]
    for kind, start in starts:
        trainer = made(Way(), kind, asked, rank, folder / kind)
        if start is None:
            trainer.add_callback(callback := FromTheStart())
            callback.trainer = trainer
        trainer.train(resume_from_checkpoint=start and str(start))
        found.append(outcome(trainer))
    return found


SAVED = [(*where, "adamw_torch") for where in EVERYWHERE] + [(*EVERYWHERE[0], "sgd")]


@pytest.mark.parametrize(("mixin", "over", "optimizer"), SAVED)
def test_a_checkpoint_is_where_training_goes_on(pools, tmp_path, mixin, over, optimizer):
    for stock, *others in both(pools, saved, tmp_path, mixin, over, optimizer):
        for own in others:
            assert stock.furthest(own) < 1e-6
            assert own.column("loss")[-2:] == pytest.approx(stock.column("loss")[-2:], rel=1e-5)
