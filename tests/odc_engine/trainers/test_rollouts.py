"""TRL's GRPOTrainer: on demand it learns and tells what it learns and tells stock, over its own answers."""

import importlib
import pkgutil
from types import SimpleNamespace

import numpy as np
import pytest
import work
from tiny_mixed import answering, mixed
from tiny_trainers import both, outcome
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, experimental
from trl.experimental.gmpo import GMPOTrainer

from odc_engine.trainers import OnDemandRollouts, refusals

pytestmark = pytest.mark.slow

TRAINERS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}


DRAW = np.random.default_rng(3)
PROMPTS = [" ".join(map(str, DRAW.integers(1, 49, DRAW.integers(3, 10)))) for _ in range(24)]


def rewarded(rank, folder, name, changed):
    """What both learn, and how many microbatches each minibatch had here on demand."""
    found, counts = [], []
    trainer, config = TRAINERS[name]
    for mixin in ("stock", "answers"):
        kind = mixed(mixin, trainer, max_tokens=48)
        usual = {"learning_rate": 3e-4, "max_steps": 4}
        made = answering(kind, rank, folder / mixin, PROMPTS, config, **usual | changed)
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


REFUSED = [{"steps_per_generation": 3, "num_generations": 2}, {"loss_type": "bnpo"}, {"top_entropy_quantile": 0.5}]


def refused(rank, folder):
    found = []
    for name, changed in [*(("answers", changed) for changed in REFUSED), ("on demand", {}), ("balanced", {})]:
        kind = mixed(name, GRPOTrainer)
        found.append(work.refused(lambda kind=kind, c=changed: answering(kind, rank, folder, PROMPTS, **c)))
    return found


class OfGMPO(GMPOTrainer):
    """Its loss is its parent's, which is none that is known."""


class OwnLoss(RLOOTrainer):
    def compute_loss(self, model, inputs, **_):
        return super().compute_loss(model, inputs) * 2


def halved(self, inputs):
    """Advantages, once they are there."""
    inputs = super(type(self), self)._prepare_inputs(inputs)
    return {**inputs, "advantages": inputs["advantages"] / 2}


class Prepares(GRPOTrainer):
    _prepare_inputs = halved


LOSSES = {
    GRPOTrainer: "nothing",  # by all tokens, as loss_type says
    RLOOTrainer: "samples",
    GMPOTrainer: None,
    OfGMPO: None,
    OwnLoss: None,
    type("Own", (GRPOTrainer,), {"_compute_loss": OwnLoss.compute_loss}): None,
    Prepares: "nothing",
}


@pytest.mark.parametrize("kind", LOSSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("said", [None, "samples", "nothing"])
def test_a_loss_that_is_not_known_goes_by_what_is_said_of_it_and_no_other_does(kind, said):
    """`loss_type` tells of a loss alone that goes by it."""
    trainer = object.__new__(type("Mine", (OnDemandRollouts, kind), {"mean_over": said}))
    trainer.args = SimpleNamespace(**{} if issubclass(kind, RLOOTrainer) else {"loss_type": "dapo"})
    assert refusals.over_of(trainer) == (LOSSES[kind] or said)
    trainer.args.loss_type = "one of tomorrow"
    assert refusals.over_of(trainer) == said


def refuses(kind):
    trainer = object.__new__(type("Mine", (OnDemandRollouts, kind), {}))
    trainer.args = SimpleNamespace(loss_type="dapo", steps_per_generation=2, gradient_accumulation_steps=2)
    return work.refused(lambda: refusals.check_rollouts(trainer))


def prepared(rank, folder):
    found = []
    front = mixed("answers", GRPOTrainer, _prepare_inputs=halved, max_tokens=48)
    for kind in (Prepares, front):
        sgd = {"max_steps": 2, "optim": "sgd", "learning_rate": 0.1}
        trainer = answering(kind, rank, folder / kind.__name__, PROMPTS, **sgd)
        trainer.train()
        found.append(outcome(trainer))
    return found


def test_inputs_that_are_prepared_in_front_are_those_of_stock_training_and_others_are_refused(pools, tmp_path):
    assert refuses(Prepares)
    assert refuses(type("OfThose", (Prepares,), {}))
    for stock, own in both(pools, prepared, tmp_path):
        assert stock.furthest(own) < 1e-6
        assert own.column("grad_norm") == pytest.approx(stock.column("grad_norm"), rel=1e-3)


GIVEN = {"SFTTrainer", "DPOTrainer", "KTOTrainer", "RewardTrainer", "CPOTrainer", "ORPOTrainer", "TPOTrainer"}


def every_trainer_of_trl():
    names = [f"trl.experimental.{found.name}" for found in pkgutil.iter_modules(experimental.__path__)]
    modules = [importlib.import_module(name) for name in ("trl", *names)]
    every = [getattr(module, name) for module in modules for name in dir(module) if name.endswith("Trainer")]
    return sorted({kind for kind in every if issubclass(kind, Trainer)}, key=lambda kind: (kind.__module__, str(kind)))


def test_trainers_of_trl_that_make_their_samples_are_known_for_it():
    every = every_trainer_of_trl()
    assert len(every) > 15
    for kind in every:
        generates = refusals._generating(object.__new__(kind)) is not None
        assert generates == (kind.__name__ not in GIVEN), kind
        assert not generates or issubclass(kind, GRPOTrainer | RLOOTrainer) or refuses(kind)


def test_what_would_train_otherwise_is_refused(pools, tmp_path):
    assert both(pools, refused, tmp_path) == [[True] * 5] * 2
