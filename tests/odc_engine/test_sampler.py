"""The batch sampler: every device's share without a word between them, through a real DataLoader and into an engine."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import work
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.data import DataLoader

from odc_engine import BalancedBatches, agree, token_mean
from odc_engine.runs.verify import BOUND
from odc_engine.sampler import REMEMBERED
from odcsim.balance import NAMES, LearnedCosts, runs_with
from odcsim.errors import InputError

LIMIT = 40
few = settings(max_examples=40, deadline=None)


def drawn_lengths(seed=0, count=21):
    return np.random.default_rng(seed).integers(2, LIMIT + 1, count)


LENGTHS = drawn_lengths()


def samplers(lengths, devices, minibatch=3, **changed):
    """One for each device, as each would make it."""
    asked = {"max_tokens": LIMIT, "averaged": False, "sync": "on-demand", "balancer": "lb-mini"} | changed
    return [BalancedBatches(lengths, devices=devices, rank=r, minibatch=minibatch, **asked) for r in range(devices)]


def of_all(devices):
    """The shares of each minibatch."""
    return list(zip(*(sampler.minibatches() for sampler in devices), strict=True))


cases = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, LIMIT), min_size=1, max_size=40),
        "devices": st.integers(1, 5),
        "minibatch": st.integers(1, 4),
        "balancer": st.sampled_from(NAMES),
        "seed": st.integers(0, 5),
        "averaged": st.booleans(),
    }
)


@given(cases, st.booleans())
@few
def test_every_sample_goes_to_one_device_within_the_limit_and_weights_make_a_mean(case, meet):
    """Of samples that are not of one token, which predict nothing. Where devices meet they run as many microbatches."""
    lengths, seen = case["lengths"], []
    meet = meet and runs_with(case["balancer"], "collective")
    devices = samplers(**case, sync="collective" if meet else "on-demand")
    for shares in of_all(devices):
        assert len({(share.number, share.digest) for share in shares}) == 1
        parts = [part for share in shares for part in share.microbatches]
        seen += [i for part in parts for i in part]
        assert all(sum(lengths[i] for i in part) <= LIMIT for part in parts)
        loss = [sum(lengths[i] - 1 for i in part) for part in parts]
        weights = [weight for share in shares for weight in share.weights]
        assert {share.tokens for share in shares} == {sum(loss)}
        whole = (case["devices"] if case["averaged"] else 1) if sum(loss) else 0
        assert sum(weights) == pytest.approx(whole)
        assert weights == pytest.approx([own * shares[0].token_weight for own in loss])
        assert not meet or len({len(share.microbatches) for share in shares}) == 1
    assert sorted(seen) == list(range(len(lengths)))


def test_only_on_demand_may_give_devices_unlike_counts():
    for sync in ("collective", "deferred"):
        with pytest.raises(InputError):
            samplers(LENGTHS, 2, sync=sync)
    assert any(len(one.microbatches) != len(other.microbatches) for one, other in of_all(samplers(LENGTHS, 2)))


def test_dropping_the_last_minibatch_leaves_full_ones():
    (sampler,) = samplers(LENGTHS, 1, minibatch=5, drop_last=True)
    assert [sum(map(len, share.microbatches)) for share in sampler.minibatches()] == [5, 5, 5, 5]


def test_the_loss_counts_what_it_is_said_to_count():
    for share in samplers(LENGTHS, 1, minibatch=30, loss=LENGTHS // 2, averaged=True)[0].minibatches():
        counted = [sum(LENGTHS[i] // 2 for i in part) for part in share.microbatches]
        assert share.weights == pytest.approx(np.array(counted) / sum(counted))


def test_fast_devices_run_more():
    one, other = of_all(samplers(np.full(36, LIMIT), 2, minibatch=18, speeds=[1.0, 0.5]))[0]
    assert (len(one.microbatches), len(other.microbatches)) == (24, 12)


# Epochs


def test_every_epoch_is_another_shuffle_and_the_same_on_every_device():
    one, other = samplers(LENGTHS, 2)
    epochs = []
    for epoch in range(3):
        one.set_epoch(epoch)
        other.set_epoch(epoch)
        epochs.append((list(one), list(other)))
    assert all(a != b for a, b in pairwise(epochs))
    one.set_epoch(1)
    assert list(one) == epochs[1][0]
    assert list(samplers(LENGTHS, 2, seed=1)[0]) != epochs[0][0]


@given(cases)
@few
def test_the_length_is_what_is_left(case):
    sampler = samplers(**case)[-1]
    assert len(sampler) == len(list(sampler))
    for share in sampler.minibatches():
        if share.number == 1 and sampler.epoch == 0:
            assert len(sampler) == len(list(sampler))


@given(cases, st.integers(0, 50))
@few
def test_a_resumed_sampler_goes_on_behind_the_last_minibatch_given_out(case, stop):
    """An epoch that was walked through is followed by the next. A loop sets the epoch that it resumed in."""
    walked, stopped, resumed = (samplers(**case)[0] for _ in range(3))
    whole = [share for _ in range(2) for share in walked.minibatches()]
    assert (walked.epoch, walked.position) == (2, 0)
    given_out = []
    while len(given_out) < min(stop, len(whole)):
        for share in stopped.minibatches():
            given_out.append(share)
            if len(given_out) >= stop:
                break
    resumed.load_state_dict(stopped.state_dict())
    for epoch in range(resumed.epoch, 2):
        resumed.set_epoch(epoch)
        given_out += resumed.minibatches()
    assert given_out == whole


def test_a_loader_that_is_far_ahead_reads_what_the_loop_will_be_told():
    (sampler,) = samplers(drawn_lengths(3, 3 * REMEMBERED), 1, minibatch=1)
    ahead = list(sampler)
    assert ahead == [list(part) for share in sampler.minibatches() for part in share.microbatches]


def test_a_state_of_other_data_is_refused():
    state = samplers(LENGTHS, 2)[0].state_dict()
    for lengths, devices, seed in ((drawn_lengths(1), 2, 0), (LENGTHS, 2, 3), (LENGTHS, 3, 0)):
        with pytest.raises(InputError):
            samplers(lengths, devices, seed=seed)[0].load_state_dict(state)
    samplers(LENGTHS, 2, balancer="native")[1].load_state_dict(state)


def test_costs_change_between_iterations_and_never_under_one():
    lengths = drawn_lengths(2, 40)
    costs = LearnedCosts(2)
    costs.update([lengths[:5]], 1.0)
    devices, before, seen = samplers(lengths, 2), of_all(samplers(lengths, 2)), []
    for sampler in devices:
        running = sampler.minibatches()
        seen.append([next(running), next(running)])
        sampler.replan(np.where(lengths > 20, 100.0, 1.0), [1.0, 0.5])
        seen[-1].append(next(running))
    assert list(zip(*seen, strict=True)) == before[:3]
    after = of_all(devices)
    assert [share.number for share, _ in after] == [3, 4, 5, 6]
    assert [shares[0].microbatches for shares in after] != [shares[0].microbatches for shares in before[3:]]
    everything = [i for shares in before[:3] + after for share in shares for part in share.microbatches for i in part]
    assert sorted(everything) == list(range(40))


REFUSED = [{"lengths": [5, 41, 7]}, {"lengths": []}, {"rank": 2}, {"minibatch": 0}, {"devices": 0}, {"seed": -1}]
REFUSED += [{"drop_last": True}, {"sync": "on-request"}, {"balancer": "lb-mink"}]
REFUSED += [{"weights": [1, 2]}, {"loss": [1, 2, 9]}]


@pytest.mark.parametrize("changed", REFUSED, ids=str)
def test_what_cannot_be_sampled_is_refused_before_training(changed):
    usual = {"lengths": [5, 9, 7], "devices": 2, "rank": 0, "minibatch": 2, "max_tokens": 40, "averaged": True}
    asked = usual | changed
    with pytest.raises(InputError):
        BalancedBatches(asked.pop("lengths"), **asked)


# A real DataLoader


class Texts(torch.utils.data.Dataset):
    """Random tokens; sample i has its own, of lengths[i]."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(1000 + int(i))
        return torch.randint(0, 11, (int(self.lengths[i]),), generator=draw)


def loader_of(sampler, lengths=LENGTHS, workers=0):
    return DataLoader(Texts(lengths), batch_sampler=sampler, collate_fn=list, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_loads_what_the_shares_say(workers):
    sampler, again = (samplers(LENGTHS, 2)[0] for _ in range(2))
    found, texts = [], Texts(LENGTHS)
    for share, microbatches in sampler.over(loader_of(sampler, workers=workers)):
        for batch, part in zip(microbatches, share.microbatches, strict=True):
            assert all(torch.equal(sample, texts[i]) for sample, i in zip(batch, part, strict=True))
        found.append(share.microbatches)
    assert found == [share.microbatches for share in again.minibatches()]


def test_a_loop_that_leaves_microbatches_unread_or_stops_goes_on_with_the_next_minibatch():
    sampler = samplers(LENGTHS, 2, minibatch=2)[0]
    loader, seen = loader_of(sampler), []
    for stop in (2, None):
        for share, microbatches in sampler.over(loader):
            seen.append((share, next(iter(microbatches), None)))
            if share.number == stop:
                break
    assert [share.number for share, _ in seen] == list(range(6))
    for share, first in seen:
        if share.microbatches:
            assert list(map(len, first)) == [LENGTHS[i] for i in share.microbatches[0]]


def test_an_empty_microbatch_reaches_the_loop_as_an_empty_batch():
    (_, last) = samplers([5], 2, sync="collective", balancer="sorted-slice")
    share, microbatches = next(last.over(loader_of(last, [5])))
    assert (share.microbatches, share.weights, list(microbatches)) == (((),), (0.0,), [[]])


def test_a_loader_of_something_else_is_refused():
    one, other = samplers(LENGTHS, 2)
    with pytest.raises(InputError):
        next(one.over(loader_of(other)))
    _, microbatches = next(one.over([]))
    with pytest.raises(InputError):
        list(microbatches)


# A real engine


def mean_loss(model, samples):
    """Of one microbatch, over its tokens, in one forward pass; of nobody, so that the others are met."""
    samples = samples or [torch.zeros(2, dtype=torch.int64)]
    found = model(torch.cat([sample[:-1] for sample in samples]), 0)
    return functional.cross_entropy(found.float(), torch.cat([sample[1:] for sample in samples]))


def trained(rank, sync, balancer):
    """Gradients of each minibatch of an epoch, on a device of two."""
    sampler, found = samplers(LENGTHS, 2, sync=sync, balancer=balancer)[rank], []
    with work.device(work.Case((0, 0), sync=sync)) as (model, comm):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for share, microbatches in sampler.over(loader_of(sampler)):
            agree(share.digest)
            for batch, weight in zip(microbatches, share.weights, strict=True):
                (weight * mean_loss(model, batch)).backward()
            comm.settle()
            found.append(work.whole_gradients(model))
            optimizer.step()
            optimizer.zero_grad()
            comm.publish()
    return found


def reference():
    """One process, fp64: the mean over all tokens of each minibatch, weighed as the engine's own load is."""
    model, texts, found = work.Case((0,)).fresh().double(), Texts(LENGTHS), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for share in samplers(LENGTHS, 1, minibatch=6)[0].minibatches():
        samples = [texts[i] for part in share.microbatches for i in part]
        for sample, weight in zip(samples, token_mean([len(sample) - 1 for sample in samples]), strict=True):
            (weight * functional.cross_entropy(model(sample[:-1], 0), sample[1:], reduction="sum")).backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize(
    ("sync", "balancer"), [("on-demand", "lb-mini"), ("collective", "sorted-slice"), ("deferred", "lb-micro")]
)
def test_gradients_equal_one_process(pools, sync, balancer):
    """Three minibatches of six samples and one of three, which leaves a device without a second microbatch."""
    expected = reference()
    for found in pools(2).run(trained, sync, balancer):
        for mine, its in zip(found, expected, strict=True):
            assert work.error(mine, its) <= 10 * BOUND  # weights differ by rounding from the second minibatch on
    shares = [share for both in of_all(samplers(LENGTHS, 2, sync=sync, balancer=balancer)) for share in both]
    assert len({len(share.microbatches) for share in shares[:2]}) == (2 if sync == "on-demand" else 1)
    assert any(() in share.microbatches for share in shares) == (sync != "on-demand")


def disagreed(rank, digests):
    return work.refused(lambda: agree(digests[rank]))


def test_devices_that_plan_differently_all_hear_of_it(pools):
    assert [pools(2).run(disagreed, digests) for digests in ("aa", "ab")] == [[False] * 2, [True] * 2]
