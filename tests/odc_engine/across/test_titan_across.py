"""torchtitan over two machines: on demand it learns what it learns stock."""

from dataclasses import dataclass

import pytest
from own_loops import FULL, HYBRID
from tiny_titan import balanced_data, config_of, on_processors, stock_data, trained

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports torchtitan there
REPLICAS = {HYBRID: 2, FULL: 1}


def compared(rank, folder, mesh):
    on_processors(rank)
    from torchtitan.trainer import Trainer

    from odc_engine.trainers.titan import TitanMixin

    class AcrossMachines(TitanMixin, Trainer):
        @dataclass(kw_only=True, slots=True)
        class Config(Trainer.Config):
            pass

    asked = {"chunked": False, "steps": 5, "minibatch": 4, "replicas": REPLICAS[mesh]}
    stock = trained(config_of(Trainer, folder / "stock", stock_data(49, 4), **asked))
    return stock, trained(config_of(AcrossMachines, folder / "own", balanced_data(49, 4), **asked))


@pytest.mark.parametrize("mesh", [HYBRID, FULL])
def test_weights_losses_and_norms_are_those_of_stock_training(machines, tmp_path, mesh):
    """The fourth minibatch is a single sample, so that three devices have nothing to run."""
    for stock, on_demand in machines(2, 2).run(compared, tmp_path, mesh, timeout=LIMIT):
        assert stock.furthest(on_demand) < 1e-5  # AdamW divides small gradients by their size, and rounding with them
        assert on_demand.losses == pytest.approx(stock.losses, rel=1e-5)
        assert on_demand.norms == pytest.approx(stock.norms, rel=1e-4)
        assert len(on_demand.losses) == 5
