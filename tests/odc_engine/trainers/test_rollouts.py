"""TRL's GRPOTrainer: on demand it learns and tells what it learns and tells stock, over its own answers."""

import numpy as np
import pytest
from datasets import Dataset
from datasets.table import InMemoryTable
from tiny_trainers import arguments, both, llama, outcome, words
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from odc_engine.trainers import OnDemandMixin, OnDemandRollouts
from odcsim.errors import InputError

pytestmark = pytest.mark.slow

TRAINERS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}


def prompts(count):
    draw = np.random.default_rng(3)
    texts = [" ".join(map(str, draw.integers(1, 49, draw.integers(3, 10)))) for _ in range(count)]
    return Dataset(InMemoryTable.from_pydict({"prompt": texts}), fingerprint=f"prompts {count}")


def reward(completions, **_):
    return [float(len(set(completion.split()))) for completion in completions]


def rewarded(rank, folder, name, changed):
    """What both learn, and how many microbatches each minibatch had here on demand."""
    found, counts = [], []
    trainer, config = TRAINERS[name]
    for kind in (trainer, type("OnDemand", (OnDemandRollouts, trainer), {"max_tokens": 48})):
        usual = {
            "learning_rate": 3e-4,
            "bf16": False,
            "max_steps": 4,
            "num_generations": 4,
            "max_completion_length": 24,
        }
        own = arguments(rank, folder / kind.__name__, config, **usual | changed)
        made = kind(model=llama(), reward_funcs=reward, args=own, train_dataset=prompts(24), processing_class=words())
        if hasattr(made, "_shared"):
            share = made._shared
            made._shared = lambda answers, share=share: counts.append(len(parts := share(answers))) or parts
        made.train()
        found.append(outcome(made))
    return *found, counts


MODES = {
    "tokens": ("grpo", {"max_steps": 8}),
    "sequences": ("grpo", {"loss_type": "grpo", "num_iterations": 2, "optim": "sgd", "learning_rate": 0.1}),
    "two steps for each generation": ("grpo", {"steps_per_generation": 4, "gradient_checkpointing": True}),
    "leave one out": ("rloo", {"beta": 0.0, "optim": "sgd", "learning_rate": 0.1}),
}
TOLD = ("loss", "grad_norm", "num_tokens", "reward", "completions/mean_length")


@pytest.mark.parametrize("mode", MODES)
def test_it_learns_and_tells_what_stock_training_does(pools, tmp_path, mode):
    every = both(pools, rewarded, tmp_path, *MODES[mode])
    assert every[0][2] != every[1][2]
    for stock, on_demand, _ in every:
        assert stock.furthest(on_demand) < 1e-6
        for name in TOLD:
            assert on_demand.column(name) == pytest.approx(stock.column(name), rel=1e-3, abs=1e-5)
            assert stock.column(name)
        assert len(on_demand.column("entropy")) == len(stock.column("entropy"))


REFUSED = {
    "in the middle of an optimizer step": {"steps_per_generation": 3, "num_generations": 2},
    "loss_type 'bnpo'": {"loss_type": "bnpo"},
    "entropies of a microbatch": {"top_entropy_quantile": 0.5},
}


def refused(rank, folder):
    told = {}
    for words_, changed in REFUSED.items():
        own = arguments(rank, folder, GRPOConfig, **{"bf16": False, "num_generations": 4} | changed)
        with pytest.raises(InputError) as error:
            made(OnDemandRollouts, own)
        told[words_] = str(error.value)
    with pytest.raises(InputError) as error:
        made(OnDemandMixin, arguments(rank, folder, GRPOConfig, bf16=False, num_generations=4))
    return told, str(error.value)


def made(mixin, own):
    kind = type("Own", (mixin, GRPOTrainer), {})
    return kind(model=llama(), reward_funcs=reward, args=own, train_dataset=prompts(24), processing_class=words())


def test_what_would_train_otherwise_is_refused_with_the_way_out(pools, tmp_path):
    for told, other in both(pools, refused, tmp_path):
        assert all(words_ in problem and "; " in problem for words_, problem in told.items())
        assert "put OnDemandRollouts in front" in other
