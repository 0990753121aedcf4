"""Trainers that others wrote, cut otherwise: what trains rightly passes, and what defeats the mixin does not."""

import contextlib

import pytest

from odc_engine.runs.packings import first_step, told

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports the trainer there
SUPERVISED = """
import os
from pathlib import Path

from tiny_trainers import Texts, arguments, collate, llama
from transformers import Trainer

from odc_engine.trainers import OnDemandMixin


class OnDemandTrainer(OnDemandMixin, Trainer):
    max_tokens = 130


class ByMicrobatches(OnDemandTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        for parameter in model.parameters():
            parameter.grad *= len(inputs["microbatches"])
        return loss


own = arguments(int(os.environ["RANK"]), Path("out"))
{kind}(model=llama(), args=own, train_dataset=Texts(24), data_collator=collate).train()
"""
ROLLOUTS = """
import os
from pathlib import Path

from datasets import Dataset
from tiny_trainers import arguments, llama, words
from trl import GRPOConfig, GRPOTrainer

from odc_engine.trainers import OnDemandRollouts


class OnDemandTrainer(OnDemandRollouts, GRPOTrainer):
    max_tokens = 80


def reward(completions, **_):
    return [float(len(set(completion.split()))) for completion in completions]


changed = {"bf16": False, "num_generations": 4, "max_completion_length": 24}
own = arguments(int(os.environ["RANK"]), Path("out"), GRPOConfig, **changed)
prompts = Dataset.from_dict({"prompt": [" ".join(map(str, range(1, n))) for n in (3, 9, 5, 4, 8, 7)]})
model = {"model": llama(), "processing_class": words(), "reward_funcs": reward}
OnDemandTrainer(**model, args=own, train_dataset=prompts).train()
"""
VERL = """
import os
from pathlib import Path

from tiny_verl import engine_of, on_processors, trained

on_processors()
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from odc_engine.trainers.verl import VerlMixin


class OnDemandEngine(VerlMixin, FSDPEngineWithLMHead):
    pass


trained(engine_of(OnDemandEngine, Path("model")), int(os.environ["RANK"]), 1)
"""


def ran(rank, folder, otherwise):
    from tiny_trainers import started

    started(rank)
    with contextlib.chdir(folder):
        return first_step(["train.py"], otherwise)


def judged(pools, folder, script):
    (folder / "train.py").write_text(script, encoding="utf-8")
    return told("train.py", *(pools(2).run(ran, folder, cut, timeout=LIMIT)[0] for cut in (False, True)))


RIGHT = {"Trainer": SUPERVISED.replace("{kind}", "OnDemandTrainer"), "GRPOTrainer": ROLLOUTS, "verl": VERL}


@pytest.mark.parametrize("name", RIGHT)
def test_what_trains_rightly_passes(pools, tmp_path, name):
    assert judged(pools, tmp_path, RIGHT[name]) == 0


def test_a_trainer_that_defeats_the_mixin_does_not(pools, tmp_path):
    assert judged(pools, tmp_path, SUPERVISED.replace("{kind}", "ByMicrobatches")) == 1
