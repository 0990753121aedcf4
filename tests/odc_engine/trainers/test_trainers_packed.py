"""Trainers that others wrote, cut otherwise: what trains rightly passes, and what defeats the mixin does not."""

import contextlib

import pytest

from odc_engine.runs.packings import first_step, told

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports the trainer there
SUPERVISED = """
import os
from pathlib import Path

from tiny_mixed import mixed, training


class ByMicrobatches(mixed("on demand", max_tokens=130)):
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        for parameter in model.parameters():
            parameter.grad *= len(inputs["microbatches"])
        return loss


training({kind}, int(os.environ["RANK"]), Path("out")).train()
"""
ROLLOUTS = """
import os
from pathlib import Path

from tiny_mixed import answering

prompts = [" ".join(map(str, range(1, n))) for n in (3, 9, 5, 4, 8, 7)]
answering("answers", int(os.environ["RANK"]), Path("out"), prompts).train()
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


RIGHT = {"Trainer": SUPERVISED.replace("{kind}", "ByMicrobatches.__base__"), "GRPOTrainer": ROLLOUTS, "verl": VERL}


@pytest.mark.parametrize("name", RIGHT)
def test_what_trains_rightly_passes(pools, tmp_path, name):
    assert judged(pools, tmp_path, RIGHT[name]) == 0


def test_a_trainer_that_defeats_the_mixin_does_not(pools, tmp_path):
    assert judged(pools, tmp_path, SUPERVISED.replace("{kind}", "ByMicrobatches")) == 1
