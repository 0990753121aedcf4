"""A gradient that is not finite is refused, and the way out that is named leads where stock training is."""

import pytest
import torch
from tiny_mixed import answering, mixed, training
from tiny_trainers import both, outcome
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback
from trl import GRPOTrainer

from odc_engine.errors import BadGradient, PeerLost

pytestmark = pytest.mark.slow


class Spoils(TrainerCallback):
    """The loss in the second step, on one rank or on both."""

    def __init__(self, by, where):
        self.by, self.where, self.factor = by, where, 1.0

    def on_step_begin(self, args, state, *_, **__):
        self.factor = self.by if state.global_step == 1 and args.process_index in self.where else 1.0


class Clears(TrainerCallback):
    """Gradients that are not finite, and so the step."""

    def on_pre_optimizer_step(self, *_, model, **__):
        for parameter in model.parameters():
            grad = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            grad.nan_to_num_(0.0, 0.0, 0.0)


def spoiled(base, spoils):
    def compute_loss(self, model, inputs, *args, **kwargs):
        return base.compute_loss(self, model, inputs, *args, **kwargs) * spoils.factor

    return type("Spoiled", (base,), {"compute_loss": compute_loss})


def ended(rank, folder, name, by, where, clears):
    """Stock training's weights, those of the way out, and what ends it without that."""
    found, sgd = [], {"max_steps": 3, "optim": "sgd", "learning_rate": 0.1}
    for mixin, said in (("stock", {}), (name, {"check_finite": False}), (name, {})):
        spoils, own = Spoils(by, where), folder / str(len(found))
        base = spoiled(Trainer if name == "on demand" else GRPOTrainer, spoils)
        kind = mixed(mixin, base, mean_over="nothing", **said)
        if name == "on demand":
            trainer = training(kind, rank, own, **sgd)
        else:
            prompts = [" ".join(map(str, range(1, 3 + i % 5))) for i in range(16)]
            trainer = answering(kind, rank, own, prompts, max_completion_length=8, **sgd)
        for callback in (spoils, *([Clears()] if clears else [])):
            trainer.add_callback(callback)
        try:
            trainer.train()
            found.append(outcome(trainer).weights)
        except (BadGradient, PeerLost) as error:
            found.append(type(error))
    return found


WAYS = {
    "no number, on one rank": ("on demand", float("nan"), (0,), True),
    "too much, on both ranks": ("on demand", float("inf"), (0, 1), True),
    "no number, of answers": ("answers", float("nan"), (1,), True),
    "no number, stepped with as stock training does": ("on demand", float("nan"), (0,), False),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_way_out_leads_where_stock_training_is(pools, tmp_path, way):
    *_, clears = WAYS[way]
    every = both(pools, ended, tmp_path, *WAYS[way])
    assert {BadGradient} <= {end for *_, end in every} <= {BadGradient, PeerLost}
    for stock, own, _ in every:
        assert all(torch.isfinite(weight).all() == clears for weight in stock.values())
        for name, weight in stock.items():
            torch.testing.assert_close(own[name], weight, rtol=1e-5, atol=1e-6, equal_nan=True)
