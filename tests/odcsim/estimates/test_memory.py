from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.estimates.memory import LOSS_CHUNK, Memory, estimate
from odcsim.program import SYNCS
from odcsim.recipe import Recipe

MODEL = catalog.model("r1-distill-qwen-7b")


def collective(devices: int, tokens: int) -> Memory:
    return estimate(MODEL, devices, tokens, Recipe("collective"))


def test_the_total_is_the_sum_of_its_terms() -> None:
    memory = collective(8, 65536)
    assert memory.total == sum(getattr(memory, term.name) for term in fields(memory))


def test_adam_states_are_twelve_bytes_per_parameter_over_the_devices() -> None:
    assert collective(8, 100).states == 12 * MODEL.parameters / 8


@given(st.integers(1, 1024), st.integers(0, 200_000), st.sampled_from(SYNCS))
def test_more_devices_need_less_and_more_tokens_more(devices: int, tokens: int, sync: str) -> None:
    here = estimate(MODEL, devices, tokens, Recipe(sync))
    assert all(getattr(here, term.name) >= 0 for term in fields(here))
    assert estimate(MODEL, devices + 1, tokens, Recipe(sync)).total < here.total
    assert estimate(MODEL, devices, tokens + 1, Recipe(sync)).total > here.total


@given(st.integers(1, 1024))
def test_deferring_reduction_costs_a_full_fp32_gradient_whatever_the_devices(devices: int) -> None:
    more = estimate(MODEL, devices, 1000, Recipe("deferred")).total
    assert more - collective(devices, 1000).total == pytest.approx(4 * MODEL.parameters)


@given(st.integers(1, 1024))
def test_one_sided_adds_the_published_shard_and_the_accumulator(devices: int) -> None:
    more = estimate(MODEL, devices, 1000, Recipe("on-demand")).total
    assert more - collective(devices, 1000).total == pytest.approx(6 * MODEL.parameters / devices)


def test_saved_inputs_dominate_activations_of_a_deep_model() -> None:
    saved = 2 * 65536 * MODEL.hidden * MODEL.layers
    assert saved < collective(8, 65536).activations < 4 * saved


def test_the_loss_is_taken_in_chunks() -> None:
    assert collective(8, LOSS_CHUNK).logits == collective(8, 65536).logits
    assert collective(8, LOSS_CHUNK // 2).logits == collective(8, LOSS_CHUNK).logits / 2


def test_the_papers_settings_fit_and_a_plainly_too_large_one_does_not() -> None:
    """1.5B and 7B with samples up to 64K ran on eight GPUs of 80 GB; 32B cannot hold its states there."""
    room = catalog.gpu("a100").memory_bytes
    for name in ("r1-distill-qwen-1.5b", "r1-distill-qwen-7b"):
        assert estimate(catalog.model(name), 8, 65536, Recipe("on-demand")).total < room
    large = catalog.model("r1-distill-qwen-32b")
    assert estimate(large, 8, 65536, Recipe("collective")).total > room


def test_experts_count_by_what_a_token_visits() -> None:
    m = catalog.model("qwen3-30b-a3b")
    working = estimate(m, 8, 1000, Recipe("collective")).activations - 2000 * m.hidden * m.layers
    assert working < 2000 * 6 * m.ffn * m.experts_active * 2
