"""torchtitan's own trainer: on demand it learns what it learns stock."""

from dataclasses import dataclass

import pytest
import torch
from tiny_titan import balanced_data, config_of, on_processors, stock_data, trained

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports torchtitan there


def on_demand_trainer():
    from torchtitan.trainer import Trainer

    from odc_engine.trainers.titan import TitanMixin

    class OnDemandTrainer(TitanMixin, Trainer):
        @dataclass(kw_only=True, slots=True)
        class Config(Trainer.Config):
            pass

    return OnDemandTrainer


def config(kind, folder, data=balanced_data, **asked):
    return config_of(kind, folder, data(25, 4), **{"chunked": False, "steps": 1, "minibatch": 4} | asked)


def compared(rank, folder, chunked, steps):
    on_processors(rank)
    from torchtitan.trainer import Trainer

    asked = {"chunked": chunked, "steps": steps}
    stock = trained(config(Trainer, folder / "stock", stock_data, **asked))
    return stock, trained(config(on_demand_trainer(), folder / "own", **asked))


@pytest.mark.parametrize(("chunked", "steps"), [(False, 20), (True, 5)])
def test_weights_losses_and_norms_are_those_of_stock_training(pools, tmp_path, chunked, steps):
    """Each fourth minibatch is a single sample, so that one device has nothing to run."""
    for stock, on_demand in pools(2).run(compared, tmp_path, chunked, steps, timeout=LIMIT):
        assert stock.furthest(on_demand) < 1e-5  # AdamW divides small gradients by their size, and rounding with them
        assert on_demand.losses == pytest.approx(stock.losses, rel=1e-5)
        assert on_demand.norms == pytest.approx(stock.norms, rel=1e-4)
        assert len(on_demand.losses) == steps


def resumed(rank, folder):
    on_processors(rank)
    parts = [("whole", 6), ("parts", 3), ("parts", 6)]
    whole, _, rest = (trained(config(on_demand_trainer(), folder / name, steps=n, saved=3)) for name, n in parts)
    return whole, rest


def test_a_checkpoint_is_where_training_goes_on(pools, tmp_path):
    for whole, rest in pools(2).run(resumed, tmp_path, timeout=LIMIT):
        assert rest.losses == pytest.approx(whole.losses[3:], rel=1e-5)
        assert whole.furthest(rest) < 1e-6


def poisoned(rank, folder, checks):
    """What ends training of a weight that is no number."""
    on_processors(rank)
    own = on_demand_trainer()

    class Poisoned(own):
        check_finite = checks

        @dataclass(kw_only=True, slots=True)
        class Config(own.Config):
            pass

        def train_step(self, data_iterator):
            with torch.no_grad():
                next(self.model_parts[0].parameters()).fill_(float("nan"))
            super().train_step(data_iterator)

    return ended(config(Poisoned, folder).build())


def ended(trainer):
    try:
        trainer.train()
    except Exception as error:
        return type(error).__name__
    finally:
        if hasattr(trainer, "own_odc"):
            trainer.own_odc.close()
        trainer.close()
    return ""


def test_a_gradient_that_is_not_finite_is_refused_or_left_to_torchtitan(pools, tmp_path):
    assert "BadGradient" in pools(2).run(poisoned, tmp_path / "checked", True, timeout=LIMIT)
    every = pools(2).run(poisoned, tmp_path / "not", False, timeout=LIMIT)
    assert {"", "BadGradient"}.isdisjoint(every)  # stock training refuses such a loss itself


def without_mixin(rank, folder):
    """What becomes of OnDemand in torchtitan's own trainer, where one device has no microbatch and nobody settles."""
    on_processors(rank)
    from torchtitan.trainer import Trainer

    from odc_engine import OnDemand

    class Plain(Trainer):
        @dataclass(kw_only=True, slots=True)
        class Config(Trainer.Config):
            pass

        def train_step(self, data_iterator):
            if not hasattr(self, "own_odc"):
                self.own_odc = OnDemand(self.model_parts[0], timeout=20.0)
            self.gradient_accumulation_steps = 1 - rank
            super().train_step(data_iterator)

    return ended(config(Plain, folder, stock_data).build())


def test_a_device_without_microbatches_is_refused_without_the_mixin(pools, tmp_path):
    one, other = pools(2).run(without_mixin, tmp_path, timeout=LIMIT)
    assert one == "InputError"
    assert other
