"""Memory by its terms: what each is worked out by hand to be, and which way each goes."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.catalog.estimates.memory import SLACK, activations, estimate, logits
from odcsim.program import SYNCS
from odcsim.recipe import CHOICES, Recipe

MEETS = Recipe("collective")
MODEL, MIXED = catalog.model("r1-distill-qwen-7b"), catalog.model("qwen3-30b-a3b")
P, LAYER, ROOT = MODEL.parameters, MODEL.layer_parameters, MODEL.root_parameters
FROZEN = [("tuned", "fp32", 2), ("plain", "fp32", 2), ("compiled", "fp32", 4), ("compiled", "pure", 2)]
DEVICES = st.integers(1, 1024)


def of(devices, tokens, sync="collective", **given):
    """7B on so many devices with so many tokens in a microbatch."""
    more = {name: given.pop(name) for name in ("microbatches", "longest") if name in given}
    return estimate(MODEL, devices, tokens, Recipe(sync).by(**given), **more)


MODELS = st.sampled_from([MODEL, MIXED, catalog.model("qwen2.5-1.5b")])
CHOSEN = {name: CHOICES[name].values for name in ("recompute", "optimizer", "reduce", "stack", "loss")}
CHOSEN |= {"lora": (0, 16), "attention": ("fa2", "eager")}
RECIPES = st.fixed_dictionaries({name: st.sampled_from([*of]) for name, of in CHOSEN.items()})


@given(MODELS, st.integers(2, 512), st.integers(1, 100_000), st.integers(0, 50_000), RECIPES)
def test_whatever_the_recipe_tokens_and_devices_have_one_direction(model, devices, tokens, more, chosen):
    recipe = MEETS.by(**chosen)
    here = estimate(model, devices, tokens, recipe).total
    assert estimate(model, devices, tokens + more, recipe).total >= here
    assert estimate(model, devices + 1, tokens, recipe).total <= here
    assert estimate(model, devices, tokens, recipe, microbatches=1).total <= here
    losses = {loss: estimate(model, devices, tokens, recipe.by(loss=loss)).total for loss in CHOSEN["loss"]}
    assert losses["chunked"] <= min(losses["whole"], losses["policy"])


@given(DEVICES, st.integers(0, 200_000))
def test_on_demand_lays_out_shards_to_gather_and_sums_in_place_of_gradients_shards(devices, tokens):
    """Deferring costs a full fp32 gradient whatever the devices. The total is the sum of its terms."""
    for sync in SYNCS:
        m = of(devices, tokens, sync)
        assert m.total == sum(getattr(m, term.name) for term in fields(m)) == sum(m.terms.values())
        assert (m.allocated, m.tensors) == (m.total - m.context, m.allocated - m.slack)
        assert min(m.terms.values()) >= 0
        assert of(devices + 1, tokens, sync).total < m.total
        assert of(devices, tokens + 1, sync).total >= m.total
    there, deferred, here = (of(devices, 1000, sync) for sync in ("collective", "deferred", "on-demand"))
    assert deferred.gradients - there.gradients == pytest.approx(4 * P)
    assert (here.arena, there.arena) == (pytest.approx(6 * P / devices), 0)
    assert there.gradients - here.gradients == pytest.approx(4 * P / devices)
    # Slack is a share of what comes and goes. Shards of gradients stay: with no microbatch before it a loss has none.
    m = of(8, tokens + 1, microbatches=1, loss="whole")
    stays = 4 * P / 8 if not m.logits else 0.0
    passing = m.gradients - stays + m.unsharded + m.activations + m.logits + m.buffers + m.step
    assert m.slack == pytest.approx(SLACK * passing)


def test_adapters_have_states_and_gradients_and_the_frozen_weights_neither():
    """They lie in bf16, or as masters do."""
    adapted, usual = of(8, 1000, lora=16), of(8, 1000)
    assert adapted.moments < 0.02 * usual.moments
    assert adapted.gradients < 0.02 * usual.gradients
    for stack, optimizer, frozen in FROZEN:
        weights = of(8, 1000, lora=1, optimizer=optimizer, stack=stack).weights
        assert weights == pytest.approx(frozen * P / 8, rel=2e-3), (stack, optimizer)


def test_what_is_kept_grows_from_full_recompute_to_none():
    """Eager attention keeps a matrix, and grows with the square."""
    peaks = [of(8, 16384, recompute=way).activations for way in CHOSEN["recompute"]]
    assert peaks == sorted(set(peaks))
    eager = [of(8, n, longest=n, attention="eager").activations for n in (8192, 16384)]
    assert eager[1] > 2.5 * eager[0]
    assert of(8, 16384, longest=8192, attention="eager").activations == pytest.approx(2 * eager[0])


def test_a_whole_loss_holds_log_probabilities_and_two_gradients_in_fp32():
    """152,064 words over 3,584: 43 chunks; of 65,536 tokens each has 1,525, in a power of two 2,048. A policy's loss
    holds four copies in fp32 of some words of all tokens."""
    assert (MODEL.vocab, MODEL.hidden) == (152064, 3584)
    for tokens, chunk in ((0, 0), (1, 1), (43, 1), (44, 2), (65536, 2048)):
        assert logits(MODEL, tokens, MEETS) == chunk * 152064 * (2 + 4 + 2)
    policy = MEETS.by(loss="policy")
    assert logits(MODEL, 1000, policy) == 1000 * 2048 * 16
    assert logits(replace(MODEL, vocab=100), 1000, policy) == 1000 * 100 * 16
    for stack, bytes_ in (("tuned", 12), ("plain", 12), ("compiled", 14)):
        whole = MEETS.by(loss="whole", stack=stack)
        assert logits(MODEL, 1000, whole) == 1000 * 152064 * bytes_
        assert estimate(MODEL, 8, 65536, whole).logits == logits(MODEL, 65536, whole)


def test_the_fuller_moment_counts():
    """A whole loss over many tokens is fuller than a layer's backward, and has no gradients on their way; a layer and
    what is in none are gathered."""
    whole, chunked = of(8, 65536, loss="whole"), of(8, 65536, loss="chunked")
    assert whole.gradients == 4 * P / 8 < chunked.gradients
    assert chunked.logits == 0 < whole.logits
    assert (whole.unsharded, whole.buffers) == (2 * (ROOT + LAYER), 0)
    assert whole.activations == 2 * 65536 * MODEL.hidden * (MODEL.layers + 2)


def test_in_backward_two_layers_are_gathered_a_third_is_on_its_way_and_one_is_reduced():
    """With few tokens on many devices, what is in no layer is reduced last and fullest."""
    for reduce, bytes_ in (("fp32", 4), ("bf16", 2)):
        m = of(8, 65536, reduce=reduce)
        assert (m.unsharded, m.buffers) == (2 * (ROOT + 2 * LAYER), (2 + bytes_) * LAYER)
        assert m.gradients == 4 * P / 8 + 2 * (LAYER + ROOT)
        assert of(1, 65536, reduce=reduce).buffers == 0  # one device sends nothing
    m = of(512, 1)
    assert (m.unsharded, m.buffers, m.activations, m.gradients) == (2 * ROOT, 4 * ROOT, 0, 4 * P / 512 + 2 * ROOT)
    # Many tokens are most at the last layer's backward, before any gradient is sharded: a first microbatch finds none.
    alone, later = (of(8, 200_000, microbatches=count) for count in (1, 2))
    assert later.total - alone.total == pytest.approx(4 * P / 8)
    assert of(8, 200_000) == later


OF_OPTIMIZER = {"fp32": (4, 8, 4), "bf16": (4, 4, 2), "8bit": (4, 2, 0), "pure": (2, 4, 2)}  # bytes for a parameter


@pytest.mark.parametrize("optimizer", OF_OPTIMIZER)
def test_with_few_tokens_the_optimizers_step_is_fullest_with_the_root_of_every_second_moment(optimizer):
    """States are spread over the devices."""
    weight, both, root = OF_OPTIMIZER[optimizer]
    m, offloaded = (of(8, 100, optimizer=optimizer, offload=offload) for offload in (False, True))
    assert (m.weights, m.moments) == (weight * P / 8, both * P / 8)
    assert m.total - offloaded.total == pytest.approx(m.weights + m.moments)
    m, offloaded = (of(1, 1, optimizer=optimizer, offload=offload) for offload in (False, True))
    assert (m.step, offloaded.step) == (root * P, 0)
    if root:
        assert m.activations == m.logits == m.unsharded == 0
        assert m.gradients == (2 if optimizer == "pure" else 4) * P


def test_of_adapters_fsdp1_keeps_inputs_and_their_gradients_until_backward_is_over():
    """Two hidden states of every layer; a compiled stack is FSDP2's, and keeps one."""
    saved = 2 * 65536 * MODEL.hidden * MODEL.layers
    for stack, times in (("tuned", 2), ("compiled", 1)):
        adapted = MEETS.by(lora=16, stack=stack)
        own = activations(MODEL, 65536, 65536, 8, adapted).layer
        assert estimate(MODEL, 8, 65536, adapted).activations - own == pytest.approx(times * saved)
    one, two = (activations(MODEL, 65536, 65536, count, MEETS.by(lora=16)).inputs for count in (1, 2))
    assert one == 0 < two


def test_the_layer_whose_backward_runs_by_hand():
    """7B: hidden 3,584, 28 and 4 heads of 128, MLP 18,944; a compiled layer keeps three of the MLP's widths, and leaves
    out its output where it runs by operator."""
    around, mlp = 3 * 3584 + 2 * (28 + 4) * 128, 6 * 18944
    compiled, without = MEETS.by(stack="compiled"), MEETS.by(recompute="none", stack="compiled")
    assert activations(MODEL, 1, 1, 8, compiled).layer == 2 * (around + 2 * 3584 + mlp)
    assert activations(MODEL, 1, 1, 8, without).layer == 2 * (2 * 3584 + 3 * 18944)
    assert activations(MODEL, 1, 1, 8, without).stored == 2 * 28 * (around + 3584 + 3 * 18944)
    operators = [MEETS.by(recompute="operators", stack=stack) for stack in ("tuned", "compiled")]
    tuned, compiled = (activations(MODEL, 1, 1, 8, recipe).stored for recipe in operators)
    assert tuned == 2 * 28 * (3584 + 28 * 128 + (28 * 128 + 4 * 128 + 18944 + 3584))
    assert tuned - compiled == 2 * 28 * 3584


def test_experts_hold_ten_copies_of_a_token_for_each_that_it_visits():
    """30B-A3B: hidden 2,048, 32 and 4 heads of 128, 8 experts of 768. Where outputs are weighed, backward has what went
    in, outputs in fp32, and gradients as they come, in fp32, times the score, times the output."""
    around, inside = 3 * 2048 + 2 * (32 + 4) * 128, 3 * 8 * 768
    copies = 8 * 2048 * (1 + 2 + 1 + 2 + 2 + 2)
    assert activations(MIXED, 1, 1, 8, MEETS.by(stack="compiled")).layer == 2 * (around + 2 * 2048 + inside + copies)
    visited, more, others = (
        activations(m, 1000, 1000, 8, MEETS).layer
        for m in (MIXED, replace(MIXED, experts_active=16), replace(MIXED, experts=2 * MIXED.experts))
    )
    assert visited == others < more < 2 * visited


def test_the_papers_settings_fit_and_a_plainly_too_large_one_does_not():
    """1.5B and 7B with samples up to 64K ran on eight GPUs of 80 GB; 32B cannot hold its states there."""
    room = catalog.gpu("a100").memory_bytes
    for name in ("r1-distill-qwen-1.5b", "r1-distill-qwen-7b"):
        assert estimate(catalog.model(name), 8, 65536, Recipe("on-demand")).total < room
    assert estimate(catalog.model("r1-distill-qwen-32b"), 8, 65536, MEETS).total > room
