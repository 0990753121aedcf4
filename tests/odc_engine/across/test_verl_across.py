"""verl's FSDP2 engine over two machines: on demand it learns what it learns stock."""

import pytest
from own_loops import FULL, HYBRID
from tiny_verl import engine_of, on_processors, trained

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports verl there
SIZES = {HYBRID: 2, FULL: -1}
STEPS = 5


def compared(rank, folder, mesh):
    on_processors()
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from odc_engine.trainers.verl import VerlMixin

    class AcrossMachines(VerlMixin, FSDPEngineWithLMHead):
        pass

    stock = trained(engine_of(FSDPEngineWithLMHead, folder, fsdp_size=SIZES[mesh]), rank, STEPS)
    engine = engine_of(AcrossMachines, folder, fsdp_size=SIZES[mesh])
    try:
        return stock, trained(engine, rank, STEPS)
    finally:
        engine.close()


@pytest.mark.parametrize("mesh", [HYBRID, FULL])
def test_weights_and_norms_are_those_of_stock_training(machines, tmp_path, mesh):
    every = machines(2, 2).run(compared, tmp_path, mesh, timeout=LIMIT)
    for stock, on_demand in every:
        assert stock.furthest(on_demand) < 1e-5  # AdamW divides small gradients by their size, and rounding with them
        assert on_demand.norms == pytest.approx(stock.norms, rel=1e-4)
        assert on_demand.losses == pytest.approx(stock.losses, rel=1e-4)
        assert len(on_demand.norms) == STEPS
    assert all(mine > its for mine, its in zip(every[0][1].counts, every[1][1].counts, strict=True))
