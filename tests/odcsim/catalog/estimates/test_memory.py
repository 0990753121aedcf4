from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.catalog.estimates import activations
from odcsim.catalog.estimates.activations import LOSS_CHUNK
from odcsim.catalog.estimates.memory import SLACK, Memory, estimate
from odcsim.program import SYNCS
from odcsim.recipe import RECOMPUTE, Recipe

MEETS = Recipe("collective")
MODEL = catalog.model("r1-distill-qwen-7b")


def collective(devices: int, tokens: int) -> Memory:
    return estimate(MODEL, devices, tokens, Recipe("collective"))


def test_the_total_is_the_sum_of_its_terms() -> None:
    memory = collective(8, 65536)
    assert memory.total == sum(getattr(memory, term.name) for term in fields(memory)) == sum(memory.terms.values())
    assert memory.allocated == memory.total - memory.context


@pytest.mark.parametrize(
    ("optimizer", "weight", "both"), [("fp32", 4, 8), ("bf16", 4, 4), ("8bit", 4, 2), ("pure", 2, 4)]
)
def test_states_are_spread_over_the_devices_in_the_dtype_of_the_optimizer(
    optimizer: str, weight: int, both: int
) -> None:
    memory = estimate(MODEL, 8, 100, Recipe("collective", optimizer=optimizer))
    assert memory.weights == weight * MODEL.parameters / 8
    assert memory.moments == both * MODEL.parameters / 8
    offloaded = estimate(MODEL, 8, 100, Recipe("collective", optimizer=optimizer, offload=True))
    assert memory.total - offloaded.total == pytest.approx(memory.weights + memory.moments)


@given(st.integers(1, 1024), st.integers(0, 200_000), st.sampled_from(SYNCS))
def test_more_devices_need_less_and_more_tokens_more(devices: int, tokens: int, sync: str) -> None:
    here = estimate(MODEL, devices, tokens, Recipe(sync))
    assert all(getattr(here, term.name) >= 0 for term in fields(here))
    assert estimate(MODEL, devices + 1, tokens, Recipe(sync)).total < here.total
    assert estimate(MODEL, devices, tokens + 1, Recipe(sync)).total > here.total


@given(st.integers(1, 1024))
def test_deferring_reduction_costs_a_full_fp32_gradient_whatever_the_devices(devices: int) -> None:
    more = estimate(MODEL, devices, 1000, Recipe("deferred")).gradients - collective(devices, 1000).gradients
    assert more == pytest.approx(4 * MODEL.parameters)


@given(st.integers(1, 1024))
def test_on_demand_lays_out_shards_to_gather_and_sums_in_place_of_gradients_shards(devices: int) -> None:
    here, there = (estimate(MODEL, devices, 1000, Recipe(sync)) for sync in ("on-demand", "collective"))
    assert here.arena == pytest.approx(6 * MODEL.parameters / devices)
    assert there.arena == 0
    assert there.gradients - here.gradients == pytest.approx(4 * MODEL.parameters / devices)


def test_adapters_have_states_and_gradients_and_the_frozen_weights_neither() -> None:
    adapted = estimate(MODEL, 8, 1000, Recipe("collective", lora=16))
    assert adapted.weights == pytest.approx(2 * MODEL.parameters / 8, rel=0.02)
    assert adapted.moments < 0.02 * collective(8, 1000).moments
    assert adapted.gradients < 0.02 * collective(8, 1000).gradients


def test_what_is_kept_grows_from_full_recompute_to_none() -> None:
    ways = [Recipe("collective", recompute=way) for way in RECOMPUTE]
    peaks = [estimate(MODEL, 8, 16384, way).activations for way in ways]
    assert peaks == sorted(peaks)
    assert len(set(peaks)) == len(peaks)


def test_eager_attention_keeps_a_matrix_and_grows_with_the_square() -> None:
    eager = [estimate(MODEL, 8, n, MEETS.by(attention="eager"), longest=n).activations for n in (1024, 2048)]
    assert eager[1] > 2.5 * eager[0]
    packed = estimate(MODEL, 8, 2048, MEETS.by(attention="eager"), longest=1024).activations
    assert packed == pytest.approx(2 * eager[0])


@given(st.integers(1, 200_000))
def test_slack_is_a_share_of_what_comes_and_goes(tokens: int) -> None:
    m = collective(8, tokens)
    passing = m.gradients + m.unsharded + m.activations + m.logits + m.buffers
    assert m.slack == pytest.approx(SLACK * passing)


def test_saved_inputs_dominate_activations_of_a_deep_model() -> None:
    saved = 2 * 65536 * MODEL.hidden * MODEL.layers
    assert saved < collective(8, 65536).activations < 4 * saved


def test_the_loss_is_taken_in_chunks_or_whole() -> None:
    def logits(tokens: int, loss: str = "chunked") -> float:
        return activations.logits(MODEL, tokens, MEETS.by(loss=loss))

    assert logits(LOSS_CHUNK) == logits(65536)
    assert logits(LOSS_CHUNK // 2) == logits(LOSS_CHUNK) / 2
    assert logits(65536, "whole") > 16 * logits(65536)
    assert estimate(MODEL, 8, 65536, MEETS.by(loss="whole")).logits == logits(65536, "whole")


def test_the_fuller_moment_counts() -> None:
    """A whole loss over many tokens is fuller than a layer's backward, and has no gradients on their way."""
    whole = estimate(MODEL, 8, 65536, MEETS.by(loss="whole"))
    chunked = estimate(MODEL, 8, 65536, MEETS.by(loss="chunked"))
    assert whole.gradients == 4 * MODEL.parameters / 8 < chunked.gradients
    assert chunked.logits == 0 < whole.logits


def test_the_papers_settings_fit_and_a_plainly_too_large_one_does_not() -> None:
    """1.5B and 7B with samples up to 64K ran on eight GPUs of 80 GB; 32B cannot hold its states there."""
    room = catalog.gpu("a100").memory_bytes
    for name in ("r1-distill-qwen-1.5b", "r1-distill-qwen-7b"):
        assert estimate(catalog.model(name), 8, 65536, Recipe("on-demand")).total < room
    large = catalog.model("r1-distill-qwen-32b")
    assert estimate(large, 8, 65536, Recipe("collective")).total > room


def test_experts_count_by_what_a_token_visits() -> None:
    m = catalog.model("qwen3-30b-a3b")
    visited = activations.working(m, 1000, 1000, Recipe("collective"))
    assert visited < activations.working(replace(m, experts_active=16), 1000, 1000, Recipe("collective")) < 2 * visited
    assert visited == activations.working(replace(m, experts=2 * m.experts), 1000, 1000, Recipe("collective"))
