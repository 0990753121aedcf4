"""verl's own FSDP2 engine, its `apply_fsdp2` and its dynamic batches: on demand it learns what it learns stock."""

import pytest
from tiny_verl import engine_of, on_processors, trained

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports verl there


def compared(rank, folder, steps):
    on_processors()
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from odc_engine.trainers.verl import VerlMixin

    class OnDemandEngine(VerlMixin, FSDPEngineWithLMHead):
        pass

    stock = trained(engine_of(FSDPEngineWithLMHead, folder), rank, steps)
    engine = engine_of(OnDemandEngine, folder)
    on_demand = trained(engine, rank, steps)
    engine.close()
    return stock, on_demand


def test_weights_and_norms_are_those_of_stock_training(pools, tmp_path):
    (stock, one), (other_stock, other) = pools(2).run(compared, tmp_path, 20, timeout=LIMIT)
    assert stock.counts == other_stock.counts
    assert all(mine > its for mine, its in zip(one.counts, other.counts, strict=True))
    for theirs, ours in ((stock, one), (other_stock, other)):
        assert theirs.furthest(ours) < 1e-6
        assert ours.norms == pytest.approx(theirs.norms, rel=1e-4)
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-4)
        assert len(ours.norms) == 20


def registered(rank):  # noqa: ARG001
    on_processors()
    import os

    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    import odc_engine.trainers.verl_plugin  # noqa: F401
    from odc_engine.trainers.verl import VerlMixin

    os.environ["VERL_ENGINE_DEVICE"] = "cuda"
    stock = EngineRegistry.get_engine_cls("language_model", "fsdp2")
    os.environ["VERL_ENGINE_VENDOR"] = "odc"
    chosen = [EngineRegistry.get_engine_cls(model, "fsdp2") for model in ("language_model", "value_model")]
    other = EngineRegistry.get_engine_cls("language_model", "fsdp")
    del os.environ["VERL_ENGINE_VENDOR"], os.environ["VERL_ENGINE_DEVICE"]
    return stock is other is FSDPEngineWithLMHead, [issubclass(kind, VerlMixin) for kind in chosen]


def test_verl_chooses_it_by_a_vendors_name_and_nothing_else_changes(pools):
    assert pools(2).run(registered, timeout=LIMIT) == [(True, [True, True])] * 2
