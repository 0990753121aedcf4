"""TRL's DPOTrainer: on demand it learns and tells what it learns and tells stock."""

import numpy as np
import pytest
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import LoraConfig
from tiny_trainers import arguments, both, in_order, llama, outcome, words
from trl import DPOConfig, DPOTrainer

from odc_engine.trainers import OnDemandMixin

pytestmark = pytest.mark.slow


class OnDemand(OnDemandMixin, in_order(DPOTrainer)):
    max_tokens = 128  # of both answers to the prompts of a microbatch


KINDS = {"stock": in_order(DPOTrainer), "on-demand": OnDemand}


def pairs(count):
    """Prompts with a better and a worse answer, in memory alone."""
    draw = np.random.default_rng(3)
    text = [" ".join(map(str, draw.integers(1, 49, int(2 + min(draw.exponential(6), 23))))) for _ in range(3 * count)]
    columns = {
        "prompt": text[::3],
        "chosen": [" " + one for one in text[1::3]],
        "rejected": [" " + one for one in text[2::3]],
    }
    return Dataset(InMemoryTable.from_pydict(columns), fingerprint=f"pairs {count}")


def preferred(rank, folder, changed, more):
    """What both learn, and how many microbatches each minibatch had here on demand."""
    found, counts = [], []
    for name, kind in KINDS.items():
        usual = {"learning_rate": 3e-4, "bf16": False, "max_length": None, "max_steps": 4}
        own = arguments(rank, folder / name, DPOConfig, **usual | changed)
        reference = {} if more else {"ref_model": llama()}
        trainer = kind(model=llama(), args=own, train_dataset=pairs(24), processing_class=words(), **reference, **more)
        step = trainer.training_step

        def noted(model, inputs, items, step=step):
            counts.extend([len(inputs["microbatches"])] if "microbatches" in inputs else [])
            return step(model, inputs, items)

        trainer.training_step = noted
        trainer.train()
        found.append(outcome(trainer))
    return *found, counts


LORA = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")}
DPO = {
    "a reference": ({"max_steps": 20}, {}),
    "adapters": ({"max_steps": 8}, LORA),
    "length-normalized": ({"loss_type": "sigmoid_norm", "gradient_checkpointing": True}, {}),
}
MEANS = ("rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected")


@pytest.mark.parametrize("mode", DPO)
def test_it_learns_and_tells_what_stock_training_does(pools, tmp_path, mode):
    every = both(pools, preferred, tmp_path, *DPO[mode])
    assert every[0][2] != every[1][2]
    for stock, on_demand, _ in every:
        assert stock.furthest(on_demand) < 1e-6
        for name in ("loss", "grad_norm", "num_tokens", *MEANS):
            assert on_demand.column(name) == pytest.approx(stock.column(name), rel=1e-4, abs=1e-5)
            assert stock.column(name)
        assert stock.column("grad_norm")[0] > 1e-3
