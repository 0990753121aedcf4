"""Packing, and weights that make the sum over microbatches the mean over the minibatch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from odc_engine import NO_TARGET, loss_tokens, pack, sample_mean, token_mean
from odc_engine.decoder.model import Decoder
from odc_engine.packed import synthetic
from odcsim import catalog
from odcsim.errors import InputError
from odcsim.schedule import Schedule


def test_targets_are_the_next_tokens_of_the_sample_that_have_weight():
    samples = [torch.tensor(sample) for sample in ([5, 6, 7], [8], [9, 1])]
    packed = pack(samples, [torch.ones(n) for n in (3, 1, 2)])
    assert packed.tokens.tolist() == [5, 6, 7, 8, 9, 1]
    assert packed.targets.tolist() == [6, 7, NO_TARGET, NO_TARGET, 1, NO_TARGET]
    assert packed.weights.tolist() == [1, 1, 0, 0, 1, 0]
    assert packed.lengths == (3, 1, 2)
    weights = torch.tensor([0.0, 2.0, 3.0])
    packed = pack(samples[:1], [weights])
    assert packed.targets.tolist() == [NO_TARGET, 7, NO_TARGET]
    assert packed.weights.tolist() == [0, 2, 0]
    assert weights.tolist() == [0, 2, 3]  # the caller's stay


@pytest.mark.parametrize(("samples", "weights"), [([], []), ([[1, 2]], [[1.0]]), ([[1], []], [[1.0], []])])
def test_bad_microbatches_are_refused(samples, weights):
    with pytest.raises(InputError):
        pack([torch.tensor(s, dtype=torch.int64) for s in samples], [torch.tensor(w) for w in weights])
    with pytest.raises(InputError):
        synthetic(Schedule.of((2,), (((0,),),)), (0,), 9, 0, "tokenmean")


@given(st.lists(st.sampled_from([0, 1, 2, 50]), min_size=1, max_size=9))
def test_weights_make_means(counts):
    per_token, per_sample = token_mean(counts), sample_mean(counts)
    whole = float(any(counts))
    assert sum(w * n for w, n in zip(per_token, counts, strict=True)) == pytest.approx(whole)
    assert sum(w * n for w, n in zip(per_sample, counts, strict=True)) == pytest.approx(whole)
    assert len({w for w, n in zip(per_token, counts, strict=True) if n}) <= 1
    shares = [w * n for w, n in zip(per_sample, counts, strict=True) if n]
    assert shares == pytest.approx([1 / max(1, len(shares))] * len(shares))
    assert all(w == 0 for w, n in zip(per_token, counts, strict=True) if not n)


def test_loss_lies_on_the_response():
    assert loss_tokens(Schedule.of((1, 2, 9), ())) == (0, 1, 8)
    assert loss_tokens(Schedule.of((1, 2, 9, 9, 9), (), loss=(1, 2, 9, 0, 4))) == (0, 1, 8, 0, 4)
    schedule = Schedule.of((6, 1), (((0, 1),),), loss=(2, 1))
    packed = synthetic(schedule, schedule.devices[0][0], 256, seed=3)
    assert packed.weights.tolist() == [0, 0, 0, 0.5, 0.5, 0, 0]
    assert packed.targets.tolist() == [NO_TARGET] * 3 + packed.tokens[4:6].tolist() + [NO_TARGET] * 2


def test_tokens_follow_the_sample_wherever_it_runs():
    def tokens(schedule, device, m, seed=1):
        return synthetic(schedule, schedule.devices[device][m], 999, seed).tokens

    here = Schedule.of((5, 3, 4), (((0, 1),), ((2,),)), samples=(70, 80, 90))
    there = Schedule.of((4, 5, 3), (((2,), (0,)), ((1,),)), samples=(90, 70, 80))
    assert tokens(here, 0, 0).equal(torch.cat([tokens(there, 1, 0), tokens(there, 0, 0)]))
    assert tokens(here, 1, 0).equal(tokens(there, 0, 1))
    assert not tokens(here, 0, 0).equal(tokens(here, 0, 0, seed=2))
    assert not tokens(here, 0, 0).equal(tokens(replace(here, samples=()), 0, 0))


def test_means_are_what_torch_calls_means():
    schedule = Schedule.of((7, 5), (((0, 1),),), loss=(3, 4))
    model = Decoder(catalog.model("nano"), dtype=torch.float64)
    packed = synthetic(schedule, schedule.devices[0][0], 256, 0)
    each = -model.log_probs(packed)[packed.targets >= 0]
    assert len(each) == 7
    assert model(packed).item() == pytest.approx(each.mean().item(), rel=1e-12)
    per_sample = model(synthetic(schedule, schedule.devices[0][0], 256, 0, "sample-mean")).item()
    assert per_sample == pytest.approx((each[:3].mean() + each[3:].mean()).item() / 2, rel=1e-12)
