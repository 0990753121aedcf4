from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.catalog.estimates import activations
from odcsim.catalog.estimates.activations import chunk
from odcsim.catalog.estimates.memory import SLACK, Memory, estimate
from odcsim.model import Model
from odcsim.program import SYNCS
from odcsim.recipe import LOSSES, OPTIMIZERS, RECOMPUTE, REDUCE, STACKS, Recipe

MEETS = Recipe("collective")
MODEL = catalog.model("r1-distill-qwen-7b")


def collective(devices: int, tokens: int) -> Memory:
    return estimate(MODEL, devices, tokens, Recipe("collective"))


def test_the_total_is_the_sum_of_its_terms() -> None:
    memory = collective(8, 65536)
    assert memory.total == sum(getattr(memory, term.name) for term in fields(memory)) == sum(memory.terms.values())
    assert memory.allocated == memory.total - memory.context
    assert memory.tensors == memory.allocated - memory.slack


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
def test_more_devices_need_less_and_more_tokens_never_less(devices: int, tokens: int, sync: str) -> None:
    here = estimate(MODEL, devices, tokens, Recipe(sync))
    assert all(getattr(here, term.name) >= 0 for term in fields(here))
    assert estimate(MODEL, devices + 1, tokens, Recipe(sync)).total < here.total
    assert estimate(MODEL, devices, tokens + 1, Recipe(sync)).total >= here.total


RECIPES = st.builds(
    lambda recompute, optimizer, lora, reduce, **kernels: Recipe(
        "collective", recompute=recompute, optimizer=optimizer, lora=lora, reduce=reduce
    ).by(**kernels),
    recompute=st.sampled_from(RECOMPUTE),
    optimizer=st.sampled_from(OPTIMIZERS),
    lora=st.sampled_from((0, 16)),
    reduce=st.sampled_from(REDUCE),
    stack=st.sampled_from(STACKS),
    loss=st.sampled_from(LOSSES),
    attention=st.sampled_from(("fa2", "eager")),
)
MODELS = st.sampled_from([catalog.model(name) for name in ("r1-distill-qwen-7b", "qwen3-30b-a3b", "qwen2.5-1.5b")])


@given(MODELS, st.integers(2, 512), st.integers(1, 100_000), st.integers(0, 50_000), RECIPES)
def test_whatever_the_recipe_tokens_and_devices_have_one_direction(
    model: Model, devices: int, tokens: int, more: int, recipe: Recipe
) -> None:
    here = estimate(model, devices, tokens, recipe).total
    assert estimate(model, devices, tokens + more, recipe).total >= here
    assert estimate(model, devices + 1, tokens, recipe).total <= here
    assert estimate(model, devices, tokens, recipe, microbatches=1).total <= here
    chunked, policy, whole = (
        estimate(model, devices, tokens, recipe.by(loss=loss)).total for loss in ("chunked", "policy", "whole")
    )
    assert chunked <= whole
    assert chunked <= policy


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
    eager = [estimate(MODEL, 8, n, MEETS.by(attention="eager"), longest=n).activations for n in (8192, 16384)]
    assert eager[1] > 2.5 * eager[0]
    packed = estimate(MODEL, 8, 16384, MEETS.by(attention="eager"), longest=8192).activations
    assert packed == pytest.approx(2 * eager[0])


@given(st.integers(1, 200_000))
def test_slack_is_a_share_of_what_comes_and_goes(tokens: int) -> None:
    """Shards of gradients stay: with no microbatch before it a loss has none."""
    m = estimate(MODEL, 8, tokens, MEETS.by(loss="whole"), microbatches=1)
    stays = 4 * MODEL.parameters / 8 if not m.logits else 0.0
    passing = m.gradients - stays + m.unsharded + m.activations + m.logits + m.buffers + m.step
    assert m.slack == pytest.approx(SLACK * passing)


def test_saved_inputs_dominate_activations_of_a_deep_model() -> None:
    saved = 2 * 65536 * MODEL.hidden * MODEL.layers
    assert saved < collective(8, 65536).activations < 4 * saved


def test_a_chunk_of_the_loss_has_about_as_many_logits_as_all_tokens_have_hidden_states() -> None:
    """152,064 words over 3,584: 43 chunks; 65,536 tokens make 1,525 each, in a power of two 2,048."""
    assert (MODEL.vocab, MODEL.hidden) == (152064, 3584)
    assert [chunk(MODEL, tokens) for tokens in (0, 1, 43, 44, 65536)] == [0, 1, 1, 2, 2048]
    assert activations.logits(MODEL, 65536, MEETS) == 2048 * 152064 * (2 + 4 + 2)


def test_a_policys_loss_holds_four_copies_in_fp32_of_some_words_of_all_tokens() -> None:
    assert activations.logits(MODEL, 1000, MEETS.by(loss="policy")) == 1000 * 2048 * 16
    assert activations.logits(replace(MODEL, vocab=100), 1000, MEETS.by(loss="policy")) == 1000 * 100 * 16


@pytest.mark.parametrize(("stack", "bytes_"), [("tuned", 12), ("plain", 12), ("compiled", 14)])
def test_a_whole_loss_holds_log_probabilities_and_two_gradients_in_fp32(stack: str, bytes_: int) -> None:
    whole = MEETS.by(loss="whole", stack=stack)
    assert activations.logits(MODEL, 1000, whole) == 1000 * 152064 * bytes_
    assert estimate(MODEL, 8, 65536, whole).logits == activations.logits(MODEL, 65536, whole)


def test_the_fuller_moment_counts() -> None:
    """A whole loss over many tokens is fuller than a layer's backward, and has no gradients on their way."""
    whole = estimate(MODEL, 8, 65536, MEETS.by(loss="whole"))
    chunked = estimate(MODEL, 8, 65536, MEETS.by(loss="chunked"))
    assert whole.gradients == 4 * MODEL.parameters / 8 < chunked.gradients
    assert chunked.logits == 0 < whole.logits


def test_at_the_loss_a_layer_and_what_is_in_none_are_gathered() -> None:
    m = estimate(MODEL, 8, 65536, MEETS.by(loss="whole"))
    assert m.unsharded == 2 * (MODEL.root_parameters + MODEL.layer_parameters)
    assert m.activations == 2 * 65536 * MODEL.hidden * (MODEL.layers + 2)
    assert m.buffers == 0


@pytest.mark.parametrize(("reduce", "bytes_"), [("fp32", 4), ("bf16", 2)])
def test_in_backward_two_layers_are_gathered_a_third_is_on_its_way_and_one_is_reduced(reduce: str, bytes_: int) -> None:
    m = estimate(MODEL, 8, 65536, Recipe("collective", reduce=reduce))
    layer, root = MODEL.layer_parameters, MODEL.root_parameters
    assert m.unsharded == 2 * (root + 2 * layer)
    assert m.buffers == (2 + bytes_) * layer
    assert m.gradients == 4 * MODEL.parameters / 8 + 2 * (layer + root)


def test_with_few_tokens_on_many_devices_what_is_in_no_layer_is_reduced_last_and_fullest() -> None:
    m, root = estimate(MODEL, 512, 1, MEETS), MODEL.root_parameters
    assert (m.unsharded, m.buffers, m.activations) == (2 * root, 4 * root, 0)
    assert m.gradients == 4 * MODEL.parameters / 512 + 2 * root


def test_one_device_sends_nothing() -> None:
    assert estimate(MODEL, 1, 65536, MEETS).buffers == 0


@pytest.mark.parametrize(("optimizer", "root"), [("fp32", 4), ("bf16", 2), ("pure", 2), ("8bit", 0)])
def test_with_few_tokens_the_optimizers_step_is_fullest_with_the_root_of_every_second_moment(
    optimizer: str, root: int
) -> None:
    m = estimate(MODEL, 1, 1, Recipe("collective", optimizer=optimizer))
    assert m.step == root * MODEL.parameters
    if root:
        assert m.activations == m.logits == m.unsharded == 0
        assert m.gradients == (2 if optimizer == "pure" else 4) * MODEL.parameters
    assert estimate(MODEL, 1, 1, Recipe("collective", optimizer=optimizer, offload=True)).step == 0


def test_a_first_microbatch_finds_no_gradients() -> None:
    """Many tokens are most at the last layer's backward, before any gradient is sharded."""
    alone, later = (estimate(MODEL, 8, 200_000, MEETS, microbatches=count) for count in (1, 2))
    assert later.total - alone.total == pytest.approx(4 * MODEL.parameters / 8)
    assert estimate(MODEL, 8, 200_000, MEETS) == later


def test_of_adapters_fsdp1_keeps_inputs_and_their_gradients_until_backward_is_over() -> None:
    """Two hidden states of every layer; a compiled stack is FSDP2's, and keeps one."""
    adapted = Recipe("collective", lora=16)
    tuned, compiled = (estimate(MODEL, 8, 65536, adapted.by(stack=stack)) for stack in ("tuned", "compiled"))
    saved = 2 * 65536 * MODEL.hidden * MODEL.layers
    assert tuned.activations - activations.working(MODEL, 65536, 65536, adapted) == pytest.approx(2 * saved)
    again = activations.working(MODEL, 65536, 65536, adapted.by(stack="compiled"))
    assert compiled.activations - again == pytest.approx(saved)
    assert activations.held(MODEL, 65536, 1, adapted) == 0 < activations.held(MODEL, 65536, 2, adapted)


@pytest.mark.parametrize(
    ("stack", "optimizer", "frozen"),
    [("tuned", "fp32", 2), ("plain", "fp32", 2), ("compiled", "fp32", 4), ("compiled", "pure", 2)],
)
def test_frozen_weights_lie_in_bf16_or_as_masters_do(stack: str, optimizer: str, frozen: int) -> None:
    recipe = Recipe("collective", lora=1, optimizer=optimizer).by(stack=stack)
    weights = estimate(MODEL, 8, 1000, recipe).weights
    assert weights == pytest.approx(frozen * MODEL.parameters / 8, rel=2e-3)


def test_the_layer_whose_backward_runs_by_hand() -> None:
    """7B: hidden 3,584, 28 and 4 heads of 128, MLP 18,944; a compiled layer keeps three of the MLP's widths."""
    around, mlp = 3 * 3584 + 2 * (28 + 4) * 128, 6 * 18944
    compiled = MEETS.by(stack="compiled")
    assert activations.working(MODEL, 1, 1, compiled) == 2 * (around + 2 * 3584 + mlp)
    without = Recipe("collective", recompute="none").by(stack="compiled")
    assert activations.working(MODEL, 1, 1, without) == 2 * (2 * 3584 + 3 * 18944)
    assert activations.kept(MODEL, 1, 1, without) == 2 * 28 * (around + 3584 + 3 * 18944)


def test_a_compiler_leaves_out_the_output_of_a_layer_that_runs_by_operator() -> None:
    selective = Recipe("collective", recompute="operators")
    kept = [activations.kept(MODEL, 1, 1, selective.by(stack=stack)) for stack in ("tuned", "compiled")]
    assert kept[0] == 2 * 28 * (3584 + 28 * 128 + (28 * 128 + 4 * 128 + 18944 + 3584))
    assert kept[0] - kept[1] == 2 * 28 * 3584


def test_experts_hold_ten_copies_of_a_token_for_each_that_it_visits() -> None:
    """30B-A3B: hidden 2,048, 32 and 4 heads of 128, 8 experts of 768. Where outputs are weighed, backward has what went
    in, outputs in fp32, and gradients as they come, in fp32, times the score, times the output."""
    m = catalog.model("qwen3-30b-a3b")
    around, inside = 3 * 2048 + 2 * (32 + 4) * 128, 3 * 8 * 768
    copies = 8 * 2048 * (1 + 2 + 1 + 2 + 2 + 2)
    assert activations.working(m, 1, 1, MEETS.by(stack="compiled")) == 2 * (around + 2 * 2048 + inside + copies)


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
