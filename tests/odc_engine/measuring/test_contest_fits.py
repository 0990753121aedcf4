"""The runs that `make validate-gpu` compares fit a GPU of 80 GB, where all devices are threads on it."""

from dataclasses import replace

import pytest
import shards

from odc_engine.measuring.probes import CONTEST, contestants
from odcsim import catalog
from odcsim.catalog.estimates.memory import CONTEXT, estimate
from odcsim.recipe import ACCUMULATE, Recipe

GPU = 80e9
MODEL = catalog.model(CONTEST.model)

pytestmark = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)


def arena_bytes(accumulate, monkeypatch):
    """What all devices' arenas take, as they are laid out."""
    from meta_arena import MetaMemory, units_of

    from odc_engine.kernels import transfers
    from odc_engine.memory import arena
    from odc_engine.memory.gpu import GpuArena

    monkeypatch.setattr(arena, "CHUNK", 1 << 60)
    monkeypatch.setattr(transfers, "compile_writes", lambda *_: None)
    root, layer = units_of(MODEL, CONTEST.devices)
    memory = MetaMemory(0, CONTEST.devices)
    GpuArena(memory, [root, *[layer] * MODEL.layers], accumulate)
    return CONTEST.devices * memory.view(0).numel()


def needed(rival, accumulate, monkeypatch):
    """As the simulator estimates it of each device, but for arenas: those are there under collectives, too, and it
    knows of no slots. The GPU has one context."""
    recipe = replace(Recipe(dtype=CONTEST.dtype), **rival.choices)
    one = estimate(MODEL, CONTEST.devices, CONTEST.longest, recipe)
    return CONTEST.devices * (one.total - one.arena - CONTEXT) + CONTEXT + arena_bytes(accumulate, monkeypatch)


@pytest.mark.parametrize("accumulate", ACCUMULATE)
@pytest.mark.parametrize(
    "rival", contestants("longalign", "cuda") + contestants("even", "cuda"), ids=lambda of: of.stem
)
def test_a_contest_fits_a_gpu_of_80_gb(rival, accumulate, monkeypatch):
    assert needed(rival, accumulate, monkeypatch) <= GPU


def test_slots_take_a_sum_for_each_writer(monkeypatch):
    """So the bound would be missed by a model of three times the size."""
    locked, slots = (arena_bytes(accumulate, monkeypatch) for accumulate in ("locked", "slots"))
    more = (CONTEST.devices - 1) * 4 * MODEL.parameters
    assert slots - locked == pytest.approx(more, rel=1e-3)
