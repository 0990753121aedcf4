# ruff: noqa: ARG002 - arguments that a Trainer gives, whether a loss wants them or not
"""Trainers of TRL, as they come and with losses of one's own."""

from typing import Any

import numpy as np
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import LoraConfig
from tiny_trainers import llama, words
from torch import nn
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from losses import nets
from losses.kind import Kind
from losses.own import ZLossOfItems, each_token
from losses.samples import spoken

USUAL = {"bf16": False, "max_length": None}
READY = USUAL | {"dataset_kwargs": {"skip_prepare_dataset": True}}
SAID = 24  # samples


def in_memory(name: str, columns: dict[str, list[Any]]) -> Dataset:
    return Dataset(InMemoryTable.from_pydict(columns), fingerprint=name)


def ready() -> Dataset:
    """Tokens and labels."""
    every = spoken().every
    return in_memory("ready", {name: [one[name] for one in every] for name in ("input_ids", "labels")})


def texts(count: int, seed: int = 3) -> list[str]:
    """Of two words and more."""
    draw = np.random.default_rng(seed)
    return [" ".join(map(str, draw.integers(1, 49, int(2 + min(draw.exponential(6), 23))))) for _ in range(count)]


def bare() -> Dataset:
    return in_memory("bare", {"text": texts(4 * SAID)})


def answered() -> Dataset:
    return in_memory("answered", {"prompt": texts(SAID), "completion": [" " + one for one in texts(SAID, 4)]})


def preferred() -> Dataset:
    answers = {name: [" " + one for one in texts(SAID, seed)] for seed, name in ((4, "chosen"), (5, "rejected"))}
    return in_memory("preferred", {"prompt": texts(SAID), **answers})


def judged() -> Dataset:
    told = {"completion": [" " + one for one in texts(SAID, 4)], "label": [i % 3 > 0 for i in range(SAID)]}
    return in_memory("judged", {"prompt": texts(SAID), **told})


def prompts() -> Dataset:
    return in_memory("prompts", {"prompt": texts(SAID)})


def speaking() -> dict[str, Any]:
    return {"processing_class": words()}


def beside() -> dict[str, Any]:
    return {"processing_class": words(), "ref_model": llama()}


def adapted() -> dict[str, Any]:
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return {"processing_class": words(), "peft_config": lora}


def varied(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(completion.split()))) for completion in completions]


def rewarded() -> dict[str, Any]:
    return {"processing_class": words(), "reward_funcs": varied}


def scoring() -> nn.Module:
    return nets.of_llama(num_labels=1)


class ZLoss(ZLossOfItems, SFTTrainer):
    pass


class OverSamples(SFTTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        loss = (each_token(outputs.logits, labels).sum(1) / (labels[:, 1:] != -100).sum(1)).mean()
        return (loss, outputs) if return_outputs else loss


class Doubled(RLOOTrainer):
    def _compute_loss(self, model, inputs):
        return 2 * super()._compute_loss(model, inputs)


def sft(**changed: Any) -> Kind:
    given = {"trainer": SFTTrainer, "config": SFTConfig, "data": ready, "collate": None, "more": speaking}
    return Kind(**given | {"arguments": READY, "limits": (64,)} | changed)


def dpo(**changed: Any) -> Kind:
    given = {"trainer": DPOTrainer, "config": DPOConfig, "data": preferred, "collate": None, "more": beside}
    return Kind(**given | {"limits": (128,)} | changed | {"arguments": USUAL | changed.get("arguments", {})})


def kto(**changed: Any) -> Kind:
    given = {"trainer": KTOTrainer, "config": KTOConfig, "data": judged, "collate": None, "more": beside}
    return Kind(**given | {"limits": (56,)} | changed | {"arguments": USUAL | changed.get("arguments", {})})


def rolled(trainer: type, config: type, said: str | None = None, **changed: Any) -> Kind:
    own = {"bf16": False, "num_generations": 4, "max_completion_length": 24, "beta": 0.0, "learning_rate": 0.1}
    given = {"data": prompts, "collate": None, "more": rewarded, "limits": (48, 1000), "rollouts": True}
    return Kind(trainer=trainer, config=config, arguments=own | changed, said={"mean_over": said}, **given)


EVERY = {
    "`SFTTrainer`": sft(),
    "`SFTTrainer` with adapters": sft(more=adapted),
    "`SFTTrainer`, `padding_free=True`": sft(arguments=READY | {"padding_free": True}),
    "`SFTTrainer`, `packing=True`": sft(data=bare, arguments=USUAL | {"packing": True, "max_length": 48}),
    "`SFTTrainer`, `completion_only_loss=True`": sft(data=answered, arguments=USUAL | {"completion_only_loss": True}),
    "`SFTTrainer` with `compute_loss` that returns a mean over samples": sft(trainer=OverSamples),
    "`SFTTrainer` with `super().compute_loss` and a z-loss by `num_items_in_batch`": sft(trainer=ZLoss),
    "`DPOTrainer`": dpo(),
    "`DPOTrainer` with adapters": dpo(more=adapted),
    "`DPOTrainer`, `loss_type='ipo'`": dpo(arguments={"loss_type": "ipo"}),
    "`DPOTrainer`, `loss_type='aot'`": dpo(arguments={"loss_type": "aot"}),
    "`KTOTrainer`": kto(),
    "`KTOTrainer`, `loss_type='apo_zero_unpaired'`": kto(arguments={"loss_type": "apo_zero_unpaired"}),
    "`RewardTrainer`": Kind(RewardTrainer, scoring, preferred, None, RewardConfig, USUAL, speaking, limits=(128,)),
    "`GRPOTrainer`": rolled(GRPOTrainer, GRPOConfig),
    "`GRPOTrainer`, `loss_type='grpo'`": rolled(GRPOTrainer, GRPOConfig, loss_type="grpo"),
    "`GRPOTrainer`, `loss_type='bnpo'`": rolled(GRPOTrainer, GRPOConfig, loss_type="bnpo"),
    "`GRPOTrainer` with `mean_over = 'samples'`, which is known better": rolled(GRPOTrainer, GRPOConfig, "samples"),
    "`RLOOTrainer`": rolled(RLOOTrainer, RLOOConfig),
    "`RLOOTrainer` with a `_compute_loss` of one's own and `mean_over = 'samples'`": rolled(
        Doubled, RLOOConfig, "samples"
    ),
    "`GMPOTrainer`": rolled(GMPOTrainer, GMPOConfig),
    "`GMPOTrainer` with `mean_over = 'samples'`": rolled(GMPOTrainer, GMPOConfig, "samples"),
}
