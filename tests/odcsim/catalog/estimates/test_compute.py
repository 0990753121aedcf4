"""Seconds and FLOPs of layers from what they do: laws, fits that others published, and as their trainers count."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from odcsim import catalog
from odcsim import recipe as recipes
from odcsim.catalog import fits
from odcsim.catalog.estimates import compute
from odcsim.catalog.estimates.rates import (
    FAMILY,
    INTERVAL,
    STARTS,
    WEIGHS,
    Spread,
    family_of,
    kinds,
    rates,
    together,
    widen,
)  # fmt: skip
from odcsim.catalog.estimates.work import STACKS, bytes_moved, matmuls
from odcsim.decide.asking import ask
from odcsim.decide.setting import cost_of
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.profile import Polynomial, write
from odcsim.recipe import RECOMPUTE, USUAL, Recipe, recipe_of

SMALL, LARGE = "r1-distill-qwen-1.5b", "r1-distill-qwen-7b"
LATENT = {"latent_rank": 512, "rotary_dim": 64, "value_dim": 128, "head_dim": 192}
KINDS = [
    replace(catalog.model("qwen3-0.6b"), layers=4, kv_heads=16, **more)
    for more in (
        {"query_rank": 1536, **LATENT}, LATENT, {"linear_layers": 3, "linear_parameters": 5_000_000, "gated": True},
        {"experts": 8, "experts_active": 2, "shared_ffn": 768, "dense_layers": 1, "dense_ffn": 9000},
        {"plain_mlp": True},
    )
]  # fmt: skip


def of(model: str | Model = SMALL, gpu: str = "a100", devices: int = 8, **chosen):
    shape = catalog.model(model) if isinstance(model, str) else model
    return compute.estimate(shape, catalog.gpu(gpu), rates(family_of(gpu)), devices, USUAL.by(**chosen))


def takes(fit: Polynomial, length: int, samples: int = 1) -> float:
    """Seconds of one layer for so many samples of this length."""
    tokens, squares = samples * length, samples * length**2
    return max(fit.floor, fit.constant + fit.linear * tokens + fit.quadratic * squares)


@pytest.mark.parametrize("model", [*map(catalog.model, catalog.model_names()), *KINDS])
def test_the_matmuls_of_a_layer_have_the_models_flops(model):
    assert sum(m.flops for m in matmuls(model)) == pytest.approx(2 * model.layer_matmul_parameters, rel=1e-12)
    plain, gated = (replace(model, plain_mlp=plain) for plain in (True, False))
    if not model.experts:
        assert gated.layer_parameters - plain.layer_parameters == gated.hidden * gated.ffn
        assert bytes_moved(plain, STACKS["tuned"]) < bytes_moved(gated, STACKS["tuned"])


@pytest.mark.parametrize("model", [SMALL, LARGE])
@pytest.mark.parametrize("length", [8_192, 16_384, 32_768, 65_536])
def test_two_fits_that_others_published_are_met(model, length):
    """They were not fitted: both hold recompute, and the head in their layers; their constant is no compute."""
    fit, ours = fits.published(model, "a100"), of(model)
    layers = catalog.model(model).layers
    theirs = layers * (takes(fit.forward, length) + takes(fit.backward, length))
    found = layers * (takes(ours.forward, length) + takes(ours.backward, length)) + takes(ours.head, length)
    assert found == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("gpu", catalog.gpu_names())
def test_recompute_takes_the_longer_the_more_of_it_there_is(gpu):
    full, selective, layer, none = (takes(of(gpu=gpu, recompute=again).backward, 16_384) for again in RECOMPUTE)
    assert none < selective < full
    assert none < layer < full
    forward = of(gpu=gpu).forward
    again = takes(forward, 16_384) - forward.constant  # what was gathered is there
    assert full - none == pytest.approx(again)
    assert layer - none == pytest.approx(again / 2)


def test_a_layer_takes_no_less_than_its_launches_and_they_do_not_grow():
    """A step of the optimizer goes by the bytes of its states and its shard."""
    found = of("qwen2.5-0.5b", "h100")
    assert takes(found.forward, 1) == takes(found.forward, 64) == found.forward.floor > 0
    assert takes(found.forward, 65_536) > found.forward.floor
    fp32, bf16, eight = (of(optimizer=name).optimizer for name in ("fp32", "bf16", "8bit"))
    assert fp32 > bf16 > eight
    assert of(devices=16).optimizer == pytest.approx(fp32 / 2)


@pytest.mark.parametrize("gpu", catalog.gpu_names())
def test_a_stack_that_fuses_more_is_faster(gpu):
    compiled, tuned, plain = (of(gpu=gpu, stack=word) for word in ("compiled", "tuned", "plain"))
    for length in (128, 4096, 65_536):
        for part in ("forward", "backward", "head", "embed"):
            times = [takes(getattr(found, part), length) for found in (compiled, tuned, plain)]
            assert times == sorted(times)
    assert compiled.microbatch < tuned.microbatch < plain.microbatch


def test_a_short_sample_reaches_half_of_attentions_rate_where_the_kernel_says():
    """Kernels differ where samples are long."""
    used, other = (rates("hopper").attention[name] for name in ("fa2", "fa3"))
    found, none = of(gpu="h100"), of(gpu="h100", attention="fa3")
    length = round(used.short_forward)
    attended = takes(found.forward, length, 1000) - takes(none.forward, length, 1000)
    flops = catalog.model(SMALL).attention_flops_per_square * length**2 * 1000
    expected = flops / 989e12 * (2 / used.forward - (1 + other.short_forward / length) / other.forward)
    assert attended == pytest.approx(expected)
    times = [takes(of(gpu="h100", attention=name).backward, 32_768) for name in ("fa3", "cudnn", "fa2", "eager")]
    assert times == sorted(set(times))
    assert found == of(gpu="h100", attention="fa2")
    for chosen in ({"attention": "fa3"}, {"precision": "fp8"}):  # which that GPU does not run
        with pytest.raises(InputError):
            of(gpu="a100", **chosen)


def test_fp8_makes_the_matmuls_of_layers_as_much_faster_as_it_says_less_their_casts():
    """It brings more to wider layers."""
    model, known = catalog.model(LARGE), rates("hopper")
    bf16, fp8 = (of(LARGE, "h100", precision=p).forward.linear for p in ("bf16", "fp8"))
    work = sum(m.flops * (1 + known.narrow / min(m.inner, m.outer)) for m in matmuls(model))
    wide = sum(m.times * (m.inner + m.outer) for m in matmuls(model))
    read = 8 / 3 * wide / (3.35e12 * known.moved)  # to be cast, and gradients
    assert bf16 - fp8 == pytest.approx(work / (795e12 * known.matmul) * (1 - 1 / known.precisions["fp8"].faster) - read)
    for name in ("h100", "b200"):
        widths = [replace(catalog.model("llama-3.1-8b"), hidden=128 * n, ffn=384 * n, heads=n) for n in (8, 16, 32, 64)]
        times = [[of(wide, name, precision=p).forward.linear for wide in widths] for p in ("bf16", "fp8")]
        gains = [before / after for before, after in zip(*times, strict=True)]
        assert gains == sorted(gains)
        assert gains[0] < 1.2 < 1.3 < gains[-1] < 2


def test_a_policys_loss_moves_more_than_any_other_and_runs_the_head_once_more():
    model, known = catalog.model(LARGE), rates("hopper")
    heads = {name: of(LARGE, "h100", loss=name).head.linear for name in recipes.CHOICES["loss"].values}
    assert heads["chunked"] < heads["whole"] < heads["policy"]
    forward = 2 * model.vocab * model.hidden * (1 + known.narrow / model.hidden) / (795e12 * known.matmul)
    moved_more = model.vocab * (120 - STACKS["tuned"].whole) / (3.35e12 * known.moved)
    assert heads["policy"] - heads["whole"] == pytest.approx(forward + moved_more)
    frozen = of(LARGE, "h100", loss="policy", lora=8).head.linear
    assert heads["policy"] - frozen == pytest.approx(forward)


def test_a_layer_that_was_gathered_is_copied_out_and_its_gradients_in():
    model, bandwidth = catalog.model(LARGE), catalog.gpu("a100").memory_bandwidth * rates("ampere").moved
    sharded, whole = of(LARGE), of(LARGE, reshard=False)
    assert sharded.forward.constant == pytest.approx(4 * model.layer_parameters / bandwidth)
    assert sharded.backward.constant == pytest.approx(10 * model.layer_parameters / bandwidth)
    assert whole.backward.constant == pytest.approx(6 * model.layer_parameters / bandwidth)
    halved = of(LARGE, reduce="bf16").backward.constant
    assert halved == pytest.approx((1 - 2 / 10) * of(LARGE).backward.constant)
    assert of(LARGE, lora=8).backward.constant < 4.1 * model.layer_parameters / bandwidth


def test_experts_with_few_tokens_each_compute_for_nobody():
    mixed, known = catalog.model("qwen3-30b-a3b"), rates("hopper")
    few, usual = (of(replace(mixed, experts=n, experts_active=8), "h100").forward for n in (32, 128))
    rows = 96 * 64  # of experts more, half a tile each
    flops = rows * 6 * mixed.hidden * mixed.ffn
    copied = 4 * 96 * 3 * mixed.hidden * mixed.ffn / (3.35e12 * known.moved)
    routed = 4 * 96 * mixed.hidden / (3.35e12 * known.moved)
    assert usual.constant - few.constant == pytest.approx(flops / (795e12 * known.matmul) + copied + routed, rel=1e-3)


def test_adapters_save_the_gradients_of_weights_and_little_else():
    """They are two matrices for each weight."""
    whole, adapted = of(recompute="none"), of(recompute="none", lora=16)
    assert adapted.forward.linear > whole.forward.linear
    assert whole.forward.linear < adapted.backward.linear < whole.backward.linear
    assert adapted.backward.quadratic == whole.backward.quadratic
    assert adapted.optimizer < whole.optimizer / 50
    model = catalog.model(SMALL)
    h, f, wide, kv = model.hidden, model.ffn, 12 * 128, 2 * 128
    expected = 8 * ((h + wide + 2 * kv) + (wide + h) + 2 * (h + f) + (f + h))
    assert compute.adapter_parameters(model, 8) == expected
    mixed = catalog.model("qwen3-30b-a3b")  # 32 heads and 4 for keys of 128; 128 experts of 768
    attention = (2048 + 4096 + 2 * 512) + (4096 + 2048)
    assert compute.adapter_parameters(mixed, 1) == attention + 128 * 3 * (2048 + 768) + (2048 + 128)
    assert compute.trained_share(model, 8) == pytest.approx(28 * expected / model.parameters)
    assert compute.trained_share(model, 0) == 1


CHOICES = [{"attention": "fa2"}, {"stack": "compiled"}, {"loss": "whole"}, {"optimizer": "8bit"}, {"lora": 16},
           {"recompute": "layers"}]  # fmt: skip


def test_what_was_measured_is_not_asked_for_otherwise(tmp_path):
    """A published fit is taken for what it was made of alone."""
    write(fits.published(SMALL, "a100"), tmp_path / "p.json")
    for chosen in (*CHOICES, {"precision": "fp8"}, {"copies": "engines"}):
        with pytest.raises(InputError):
            ask("longalign", SMALL, profile=str(tmp_path / "p.json"), gpu="a100", **chosen)
    found = [cost_of(SMALL, "a100", None, 8, recipe=recipe_of(words)).profile.fidelity for words in ({}, *CHOICES)]
    assert found == ["published fit"] + ["catalogue"] * len(CHOICES)


@pytest.mark.parametrize("gpu", ["a100", "h100", "mi300x"])
def test_models_of_one_shape_take_the_same(gpu):
    """Where a fit ships for one of them, too. Both of 1.5B differ in whether the head is the embedding."""
    for pair in (("qwen2.5-7b", LARGE), ("qwen2.5-1.5b", SMALL)):
        one, other = (cost_of(name, gpu, None, 8).profile for name in pair)
        assert one.fidelity == other.fidelity
        assert (one.forward, one.backward, one.head) == (other.forward, other.backward, other.head)
    assert cost_of("qwen2.5-3b", gpu, None, 8).profile.fidelity == "catalogue"  # another shape takes none of its fit


# Spreads by kind of run: wider for more kinds and for fewer publishers, as Student's t is.
DENSE, EXPERTS = catalog.model("qwen2.5-7b"), catalog.model("qwen3-30b-a3b")
SPREADS = st.builds(Spread, st.floats(0.01, 0.5), st.integers(0, 20))
WIDENS = {"compiled": {"stack": "compiled"}, "plain": {"stack": "plain"}, "adapters": {"lora": 8},
          "fp8": {"precision": "fp8"}, "policy": {"loss": "policy"}}  # fmt: skip


def reach(recipe: Recipe = USUAL, model=DENSE, gpu: str = "h100") -> float:
    one = catalog.gpu(gpu)
    return compute.estimate(model, one, rates(one.family), 8, recipe).high


@given(st.dictionaries(st.sampled_from(sorted(STARTS)), SPREADS, min_size=1))
def test_kinds_add_by_their_squares_in_any_order(spreads):
    """More publishers of the same deviation narrow an interval, and never below it, as Student's t does."""
    named = list(spreads)
    found = together(spreads, named)
    assert found == pytest.approx(together(spreads, named[::-1]))
    assert found**2 == pytest.approx(sum(widen(of) ** 2 for of in spreads.values()))
    for one in spreads.values():
        assert one.deviation < widen(Spread(one.deviation, one.publishers + 1)) < widen(one)
        expected = one.deviation * stats.t.ppf(0.95, one.publishers + WEIGHS)
        assert INTERVAL * widen(one) == pytest.approx(expected, rel=0.06)


def test_every_choice_of_a_kind_widens_the_interval():
    for kind, chosen in WIDENS.items():
        assert kinds("hopper", DENSE, USUAL.by(**chosen)) == ["hopper", kind]
        assert reach(USUAL.by(**chosen)) > reach(), kind
    assert kinds("hopper", EXPERTS, USUAL) == ["hopper", "experts"]
    assert reach(model=EXPERTS) > reach()
    assert reach(gpu="mi355x") > reach(gpu="a100")  # which nobody ran
    assert together({}, ["cdna4"]) == widen(Spread(FAMILY, 0))
    assert together({}, ["experts"]) == widen(Spread(STARTS["experts"], 0))


# FLOPs of a step as MFU counts them: by hand, and as trainers that others wrote count them.
NONE = Recipe(recompute="none")
# Qwen2.5-1.5B: 28 layers of 12 heads of 128 that share two of keys and values, and a head of 151,936 words.
LAYER = 1536 * (12 + 2 + 2) * 128 + 12 * 128 * 1536 + 3 * 1536 * 8960
MULTIPLY = 28 * LAYER + 151_936 * 1536


def step(model, lengths, recipe=NONE):
    return compute.flops(model, recipe, sum(lengths), float(model.squares(lengths).sum()))


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=8))
def test_six_for_each_parameter_and_token_and_half_of_a_whole_attention(lengths):
    """A kernel of attention computes a part twice, which is not counted."""
    own, again = step(catalog.model("qwen2.5-1.5b"), lengths)
    attention = 12 * 28 * 12 * 128 * sum(s * s for s in lengths) // 2
    assert own == pytest.approx(6 * MULTIPLY * sum(lengths) + attention, rel=1e-12)
    assert again == pytest.approx(attention / 6, rel=1e-12)


def test_with_recompute_all_that_a_gpu_does_is_four_forwards_and_the_scores_once_more():
    """What is the model's own does not depend on what is computed again."""
    model = catalog.model("qwen3-8b")
    own, again = step(model, [9000], Recipe())
    assert {step(model, [9000], USUAL.by(recompute=recompute))[0] for recompute in RECOMPUTE} == {own}
    linear, attention = model.layer_forward(9000, 0.0), model.layer_forward(0.0, 9000.0**2)
    assert own + again == pytest.approx(model.layers * (4 * linear + 4.5 * attention) + 3 * model.head_forward(9000))
