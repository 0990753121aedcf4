"""Trainers of TRL over accelerate's FSDP2: on demand they learn and tell what they learn and tell stock."""

import pytest
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import LoraConfig
from tiny_trainers import Texts, arguments, both, in_order, llama, outcome, words
from trl import SFTConfig, SFTTrainer

from odc_engine.trainers import OnDemandMixin

pytestmark = pytest.mark.slow


def kinds(base):
    return {
        "stock": in_order(base),
        "on-demand": type("OnDemand", (OnDemandMixin, in_order(base)), {"max_tokens": 128}),
    }


def texts(count):
    """Tokens and labels, in memory alone."""
    samples = [Texts(count)[i] for i in range(count)]
    return Dataset(
        InMemoryTable.from_pydict({name: [one[name] for one in samples] for name in ("input_ids", "labels")}),
        fingerprint=f"texts {count}",
    )


USUAL = {"learning_rate": 1e-3, "bf16": False, "max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}


def finetuned(rank, folder, changed, more):
    found = []
    for name, kind in kinds(SFTTrainer).items():
        own = arguments(rank, folder / name, SFTConfig, **USUAL | changed)
        data = {"train_dataset": texts(48), "eval_dataset": texts(9), "processing_class": words()}
        trainer = kind(model=llama(), args=own, **data, **more)
        trainer.train()
        found.append(outcome(trainer))
    return found


LORA = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")}
SFT = {
    "20 steps": ({"max_steps": 20}, {}),
    "adapters": ({"max_steps": 4}, LORA),
    "without padding": ({"max_steps": 4, "padding_free": True}, {}),
    "evaluation": ({"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "gradient_checkpointing": True}, {}),
}


@pytest.mark.parametrize("mode", SFT)
def test_sft_learns_and_tells_what_stock_training_does(pools, tmp_path, mode):
    for stock, on_demand in both(pools, finetuned, tmp_path, *SFT[mode]):
        assert stock.furthest(on_demand) < 1e-6
        for name in ("loss", "grad_norm", "num_tokens", "eval_loss", "eval_mean_token_accuracy"):
            assert on_demand.column(name) == pytest.approx(stock.column(name), rel=1e-4)
        assert len(on_demand.column("mean_token_accuracy")) == len(stock.column("mean_token_accuracy"))


def test_metrics_are_means_over_the_tokens_of_the_minibatch(pools, tmp_path):
    """As stock training has them where one microbatch holds all samples of a device."""
    changed = {"max_steps": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    for stock, on_demand in both(pools, finetuned, tmp_path, changed, {}):
        for name in ("entropy", "mean_token_accuracy", "num_tokens"):
            assert len(on_demand.column(name)) == 3
            assert on_demand.column(name) == pytest.approx(stock.column(name), rel=1e-5)
