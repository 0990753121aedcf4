"""Plans for other trainers: safe for any lengths, alike on every device, and losses that add up to the mean."""

import os
import subprocess
import sys

import numpy as np
import pytest
from draws import longalign
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.balance import NAMES, plan, runs_with
from odcsim.balance.library import EVEN
from odcsim.errors import InputError

few = settings(max_examples=40)
LIMIT = 1000
COLLECTIVE = [name for name in NAMES if runs_with(name, "collective")]


@st.composite
def asked(draw, names=NAMES):
    """What a trainer may ask: any counts, ties, weights of its own (some of nothing), a loss on part of the tokens."""
    count = draw(st.integers(1, 40))
    length = st.one_of(st.integers(1, LIMIT), st.sampled_from([1, LIMIT // 2 + 1, LIMIT]))
    lengths = draw(st.lists(length, min_size=count, max_size=count))
    weight = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
    return {
        "lengths": lengths,
        "devices": draw(st.integers(1, 50)),
        "max_tokens": LIMIT,
        "balancer": draw(st.sampled_from(names)),
        "weights": draw(st.none() | st.lists(weight, min_size=count, max_size=count)),
        "loss": draw(st.none() | st.just([length // 2 for length in lengths])),
    }


def places(found):
    return sorted(i for device in found.devices for part in device for i in part)


@given(asked())
def test_every_sample_runs_once_and_the_limit_holds(question):
    """Devices without any are no more than must be."""
    found, samples = plan(**question), len(question["lengths"])
    assert len(found.devices) == question["devices"]
    assert places(found) == list(range(samples))
    assert all(sum(question["lengths"][i] for i in part) <= LIMIT for device in found.devices for part in device)
    assert sum(not any(device) for device in found.devices) == max(0, question["devices"] - samples)
    if question["balancer"] in COLLECTIVE:  # devices that meet run as many microbatches, empty ones where need be
        assert not found.uneven
        assert all(found.devices)
    else:
        assert all(part for device in found.devices for part in device)
    arrays = {name: np.array(value) if isinstance(value, list) else value for name, value in question.items()}
    assert plan(**arrays) == found


@given(asked(["lb-mini"]))
@few
def test_the_digest_tells_of_everything_that_was_asked(question):
    lengths, devices = question["lengths"], question["devices"]
    others = [
        {"lengths": [lengths[0] % LIMIT + 1, *lengths[1:]], "loss": None}, {"devices": devices + 1},
        {"max_tokens": LIMIT + 1}, {"balancer": "native"}, {"weights": [2e6] * len(lengths)},
        {"loss": [length - length // 3 for length in lengths]}, {"speeds": [1.0] * devices}, {},
    ]  # fmt: skip
    assert len({plan(**question | other).digest for other in others}) == len(others)


def test_another_process_has_the_same_digest():
    lengths = longalign(0, 60).tolist()
    asked = f"b.plan({lengths}, devices=8, max_tokens=65536, balancer='lb-mini')"
    command = [sys.executable, "-c", f"import odcsim.balance as b; print({asked}.digest)"]
    told = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        told.add(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip())
    assert told == {plan(lengths, devices=8, max_tokens=65536, balancer="lb-mini").digest}


def mean(values):
    return values.mean() if len(values) else 0.0


@given(asked(), st.booleans())
def test_weighted_losses_of_all_devices_make_the_mean_over_tokens(question, averaged):
    """By microbatch, by sample or by token; as a sum over devices, or as a mean where the framework takes one."""
    found = plan(**question)
    rng = np.random.default_rng(len(found.loss))
    losses = [rng.exponential(1.0, own) for own in found.loss]  # of each token that counts
    each = found.sample_weights(averaged=averaged)
    token = found.token_weight(averaged=averaged)
    by_mean, by_sample, by_token = [], [], []
    for device, weights in zip(found.devices, found.mean_weights(averaged=averaged), strict=True):
        parts = [np.concatenate([[], *(losses[i] for i in part)]) for part in device]
        by_mean.append(sum(w * mean(part) for w, part in zip(weights, parts, strict=True)))
        by_sample.append(sum(each[i] * mean(losses[i]) for part in device for i in part))
        by_token.append(sum(token * part.sum() for part in parts))
        assert all(weight == 0 for part, weight in zip(device, weights, strict=True) if not part)
    over = np.mean if averaged else np.sum
    whole = mean(np.concatenate(losses))
    assert [over(by_mean), over(by_sample), over(by_token)] == pytest.approx([whole] * 3, rel=1e-9, abs=1e-12)


def test_plans_by_hand():
    """All tokens but the first count where nothing is said; a device without samples meets the others in an empty
    microbatch, or has none; of four samples alike one may cost as much as the other three."""
    found = plan([1, 4, 7], devices=2, max_tokens=9)
    assert (found.loss, found.tokens) == ((0, 3, 6), 9)
    assert plan([1, 1], devices=1, max_tokens=9).token_weight(averaged=False) == 0  # no tokens to take the mean over
    assert plan([5, 9], devices=3, max_tokens=9).devices == (((1,),), ((0,),), ((),))
    assert set(plan([5, 9], devices=3, max_tokens=9, balancer="lb-mini").devices) == {((1,),), ((0,),), ()}
    found = plan([5, 5, 5, 5], devices=2, max_tokens=20, balancer="lb-mini", weights=[1, 1, 3, 1])
    assert sorted(sorted(i for part in device for i in part) for device in found.devices) == [[0, 1, 3], [2]]


def work(model, tokens):
    """FLOPs of one sample's forward and backward."""
    square = model.squares(tokens)
    layer = model.layer_forward(tokens, square) + model.layer_backward(tokens, square)
    return float(model.layers * layer + model.head_forward(tokens) + model.head_backward(tokens))


def test_the_ratio_without_weights_lies_among_those_of_dense_models():
    """By FLOPs: from where on attention takes over. Without weights that is 50K tokens."""
    lengths = longalign(1, 40)
    weighed = plan(lengths, devices=4, max_tokens=65536, weights=lengths + lengths**2 / 50_000)
    assert plan(lengths, devices=4, max_tokens=65536).devices == weighed.devices
    found = {}
    for model in map(catalog.model, catalog.model_names()):
        if model.name.startswith(("qwen2.5", "llama")) and not model.experts and 4e8 < model.parameters < 1e11:
            one, two = work(model, 1000), work(model, 2000)
            quadratic = two - 2 * one  # of 2 x 1000^2 tokens
            found[model.name] = 1000 * (one - quadratic / 2) / (quadratic / 2)
    assert len(found) > 8
    assert (min(found.values()), max(found.values())) == pytest.approx((19_000, 96_500), rel=0.05)
    assert found["llama-3.1-8b"] == pytest.approx(EVEN, rel=0.001)


WRONG = [  # beside those of tests/approved/python.txt
    *({"lengths": lengths} for lengths in ([], [[1, 2], [3, 4]], [[1, 2], 3])), {"loss": [1, 2]}, {"devices": 0},
    *({"weights": weights} for weights in ([1, 2, np.nan], [np.inf, 2, 3], ["a", 2, 3])), {"loss": [-1, 2, 1]},
    {"balancer": "lb-mini", "speeds": [1]},
]  # fmt: skip


@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_what_cannot_be_planned_is_refused(changed):
    with pytest.raises(InputError):
        plan(**{"lengths": [5, 9, 7], "devices": 2, "max_tokens": 10} | changed)


@given(asked(), st.integers(0, 39))
@few
def test_a_sample_over_the_limit_names_itself_under_every_balancer(question, place):
    lengths = question["lengths"]
    lengths[place % len(lengths)] = LIMIT + 1 + place
    with pytest.raises(InputError) as refused:
        plan(**question)
    assert str(refused.value).startswith(f"sample {place % len(lengths)}: {LIMIT + 1 + place} ")
