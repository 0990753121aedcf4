"""The batch sampler: every device's share, without a word between them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import LIMIT, both, drawn_lengths, samplers

from odc_engine import BalancedBatches
from odc_engine.sampler import REMEMBERED
from odcsim.balance import NAMES, LearnedCosts, runs_with
from odcsim.errors import InputError

few = settings(max_examples=40, deadline=None)


@st.composite
def cases(draw):
    return {
        "lengths": draw(st.lists(st.integers(1, LIMIT), min_size=1, max_size=40)),
        "devices": draw(st.integers(1, 5)),
        "minibatch": draw(st.integers(1, 4)),
        "balancer": draw(st.sampled_from(NAMES)),
        "seed": draw(st.integers(0, 5)),
        "averaged": draw(st.booleans()),
    }


@given(cases())
@few
def test_an_epoch_gives_every_sample_to_one_device_within_the_limit(case):
    devices = [list(sampler) for sampler in samplers(**case)]
    assert sorted(i for device in devices for part in device for i in part) == list(range(len(case["lengths"])))
    assert all(sum(case["lengths"][i] for i in part) <= LIMIT for device in devices for part in device)


@given(cases())
@few
def test_devices_agree_on_minibatches_and_their_weights_make_a_mean(case):
    """Of samples that are not of one token, which predict nothing."""
    for shares in zip(*(sampler.minibatches() for sampler in samplers(**case)), strict=True):
        assert len({(share.number, share.digest) for share in shares}) == 1
        loss = [sum(case["lengths"][i] - 1 for i in part) for share in shares for part in share.microbatches]
        weights = [weight for share in shares for weight in share.weights]
        assert {share.tokens for share in shares} == {sum(loss)}
        whole = (case["devices"] if case["averaged"] else 1) if sum(loss) else 0
        assert sum(weights) == pytest.approx(whole)
        assert weights == pytest.approx([own * shares[0].token_weight for own in loss])


@given(cases())
@few
def test_where_devices_meet_they_run_as_many_microbatches(case):
    if not runs_with(case["balancer"], "collective"):
        return
    for shares in zip(*(sampler.minibatches() for sampler in samplers(**case, sync="collective")), strict=True):
        assert len({len(share.microbatches) for share in shares}) == 1


def test_only_on_demand_may_give_devices_unlike_counts():
    for sync in ("collective", "deferred"):
        with pytest.raises(InputError):
            samplers(drawn_lengths(), 2, sync=sync)
    counts = {tuple(len(share.microbatches) for share in shares) for shares in both(samplers(drawn_lengths(), 2))}
    assert any(one != other for one, other in counts)


def test_dropping_the_last_minibatch_leaves_full_ones():
    (sampler,) = samplers(drawn_lengths(count=21), 1, minibatch=5, drop_last=True)
    assert [sum(map(len, share.microbatches)) for share in sampler.minibatches()] == [5, 5, 5, 5]


def test_the_loss_counts_what_it_is_said_to_count():
    lengths = drawn_lengths()
    for share in samplers(lengths, 1, minibatch=30, loss=lengths // 2, averaged=True)[0].minibatches():
        counted = [sum(lengths[i] // 2 for i in part) for part in share.microbatches]
        assert share.weights == pytest.approx(np.array(counted) / sum(counted))
    (two, _) = samplers(lengths, 2, averaged=True)
    assert next(two.minibatches()).token_weight == 2 * next(samplers(lengths, 2)[0].minibatches()).token_weight


def test_fast_devices_run_more():
    one, other = both(samplers(np.full(36, LIMIT), 2, minibatch=18, speeds=[1.0, 0.5]))[0]
    assert (len(one.microbatches), len(other.microbatches)) == (24, 12)


# Epochs


def test_every_epoch_is_another_shuffle_and_the_same_on_every_device():
    one, other = samplers(drawn_lengths(), 2)
    epochs = []
    for epoch in range(3):
        one.set_epoch(epoch)
        other.set_epoch(epoch)
        epochs.append((list(one), list(other)))
    assert all(a != b for a, b in pairwise(epochs))
    one.set_epoch(1)
    assert list(one) == epochs[1][0]
    assert list(samplers(drawn_lengths(), 2, seed=1)[0]) != epochs[0][0]


def test_an_epoch_that_was_walked_through_is_followed_by_the_next():
    (sampler,) = samplers(drawn_lengths(), 1)
    first = [share.digest for share in sampler.minibatches()]
    assert (sampler.epoch, sampler.position) == (1, 0)
    sampler.set_epoch(1)
    assert [share.digest for share in sampler.minibatches()] != first


@given(cases())
@few
def test_the_length_is_what_is_left(case):
    sampler = samplers(**case)[-1]
    assert len(sampler) == len(list(sampler))
    for share in sampler.minibatches():
        if share.number == 1 and sampler.epoch == 0:
            assert len(sampler) == len(list(sampler))


@given(cases(), st.integers(0, 50))
@few
def test_a_resumed_sampler_goes_on_behind_the_last_minibatch_given_out(case, stop):
    whole = [
        (epoch, share) for sampler in [samplers(**case)[0]] for epoch in range(2) for share in sampler.minibatches()
    ]
    stopped = samplers(**case)[0]
    given_out = []
    while len(given_out) < min(stop, len(whole)):
        for share in stopped.minibatches():
            given_out.append(share)
            if len(given_out) >= stop:
                break
    resumed = samplers(**case)[0]
    resumed.load_state_dict(stopped.state_dict())
    rest = [share for epoch in range(resumed.epoch, 2) for share in walked(resumed, epoch)]
    assert given_out + rest == [share for _, share in whole]


def test_a_loader_that_is_far_ahead_reads_what_the_loop_will_be_told():
    lengths = drawn_lengths(3, 3 * REMEMBERED)
    (sampler,) = samplers(lengths, 1, minibatch=1)
    ahead = list(sampler)
    assert ahead == [list(part) for share in sampler.minibatches() for part in share.microbatches]


def walked(sampler, epoch):
    """As a training loop does, which sets the epoch that it resumed in."""
    sampler.set_epoch(epoch)
    return sampler.minibatches()


def test_a_state_of_other_data_is_refused():
    state = samplers(drawn_lengths(0), 2)[0].state_dict()
    for other in (
        samplers(drawn_lengths(1), 2)[0],
        samplers(drawn_lengths(0), 2, seed=3)[0],
        samplers(drawn_lengths(0), 3)[0],
    ):
        with pytest.raises(InputError):
            other.load_state_dict(state)
    samplers(drawn_lengths(0), 2, balancer="native")[1].load_state_dict(state)


# Costs that change


def test_costs_change_between_iterations_and_never_under_one():
    lengths = drawn_lengths(2, 40)
    costs = LearnedCosts(2)
    costs.update([lengths[:5]], 1.0)
    devices = samplers(lengths, 2)
    before = both(samplers(lengths, 2))
    seen = []
    for sampler in devices:
        running = sampler.minibatches()
        seen.append([next(running), next(running)])
        sampler.replan(np.where(lengths > 20, 100.0, 1.0), [1.0, 0.5])
        seen[-1].append(next(running))
    assert list(zip(*seen, strict=True)) == before[:3]
    after = both(devices)
    assert [share.number for share, _ in after] == [3, 4, 5, 6]
    assert [shares[0].microbatches for shares in after] != [shares[0].microbatches for shares in before[3:]]
    everything = [i for shares in before[:3] + after for share in shares for part in share.microbatches for i in part]
    assert sorted(everything) == list(range(40))


# A real DataLoader


REFUSED = [
    {"lengths": [5, 41, 7]},
    {"rank": 2},
    {"minibatch": 0},
    {"devices": 0},
    {"seed": -1},
    {"lengths": []},
    {"drop_last": True},
    {"sync": "on-request"},
    {"balancer": "lb-mink"},
    {"weights": [1, 2]},
    {"loss": [1, 2, 9]},
]


@pytest.mark.parametrize("changed", REFUSED, ids=str)
def test_what_cannot_be_sampled_is_refused_before_training(changed):
    usual = {"lengths": [5, 9, 7], "devices": 2, "rank": 0, "minibatch": 2, "max_tokens": 40, "averaged": True}
    asked = usual | changed
    with pytest.raises(InputError):
        BalancedBatches(asked.pop("lengths"), **asked)
