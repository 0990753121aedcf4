"""Samples and answers dealt into microbatches: every one once, within the limit, dear beside dear, nothing lost."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from odc_engine import BalancedBatches
from odc_engine.trainers.answers import AnswerSize, padded, parts_within, sizes_of, unpadded
from odc_engine.trainers.exchange import swapped
from odc_engine.trainers.minibatches import MinibatchLoader, MinibatchSampler, padded_parts
from odc_engine.trainers.slices import padded_slices
from odcsim.balance.library import weigh

lengths, limits = st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(60, 400)
sizes = st.lists(st.builds(AnswerSize, st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=12)
FILL = 7


def sliced(lengths, devices, limit, weights=None):
    own = np.array(lengths, dtype=np.int64)
    costs = weigh(own) if weights is None else np.array(weights, dtype=np.float64)
    return padded_slices(range(len(own)), own, costs, devices, limit)


def each_once_within(parts, count, limit, width):
    assert sorted(chain.from_iterable(parts)) == list(range(count))
    assert all(part and len(part) * width(part) <= limit for part in parts)


@given(lengths, st.integers(1, 5), limits)
@example([1, 1, 1, 1], 3, 60)
def test_every_sample_runs_once_within_the_limit_and_in_equal_counts_where_asked(lengths, devices, limit):
    def width(part):
        return max(lengths[i] for i in part)

    each_once_within(padded_parts(range(len(lengths)), np.array(lengths), limit), len(lengths), limit, width)
    found = sliced(lengths, devices, limit)
    parts = list(chain.from_iterable(found))
    each_once_within(parts, len(lengths), limit, width)
    counts = {len(own) for own in found}
    assert len(counts) == 1 or (max(counts) - min(counts) == 1 and all(len(part) == 1 for part in parts))


@given(sizes, st.integers(80, 300))
def test_every_answer_runs_once_within_the_limit(sizes, limit):
    def width(part):
        return max(sizes[i].prompt for i in part) + max(sizes[i].completion for i in part)

    each_once_within(parts_within(range(len(sizes)), sizes, limit), len(sizes), limit, width)


@given(lengths, st.integers(1, 5), limits)
def test_no_cut_within_the_limit_has_fewer(lengths, devices, limit):
    longest, fewest = sorted(lengths, reverse=True), 0
    while longest:
        del longest[: limit // longest[0]]
        fewest += 1
    assert max(map(len, sliced(lengths, devices, limit))) == -(-fewest // devices)


@given(lengths, st.integers(2, 5), limits, st.randoms())
def test_steps_run_from_the_costliest_down_in_whatever_order_samples_come(lengths, devices, limit, shuffler):
    def steps():
        found = [[[lengths[i] for i in part] for part in own] for own in sliced(lengths, devices, limit, [*lengths])]
        return [max(len(own[at]) * max(own[at]) for own in found if at < len(own)) for at in range(len(found[0]))]

    costs = steps()
    assert costs == sorted(costs, reverse=True)
    shuffler.shuffle(lengths)
    assert steps() == costs


def test_a_long_sample_meets_several_short_ones_that_cost_as_much_and_what_costs_nothing_is_run():
    unlike = [100, 50, 50, 25, 25, 25, 25]
    assert sliced(unlike, 3, 120, unlike) == [[(0,)], [(1, 2)], [(3, 4, 5, 6)]]
    assert sorted(chain.from_iterable(chain.from_iterable(sliced([3, 3, 3], 2, 9, [0, 0, 0])))) == [0, 1, 2]


@pytest.mark.parametrize("devices", [2, 4])
def test_unlike_lengths_wait_less_than_in_the_order_they_come(devices):
    """Seconds of steps in which all wait for the costliest, where a sample alone is a step stock."""
    drawn = np.clip(np.random.default_rng(5).lognormal(4.6, 1.0, 16 * devices), 16, 1024).astype(int).tolist()
    found = sliced(drawn, devices, 1024, drawn)
    ours = sum(max(len(part) * drawn[part[0]] for part in step) for step in zip(*found, strict=True))
    stock = sum(max(drawn[at : at + devices]) for at in range(0, len(drawn), devices))
    assert ours < 0.9 * stock


LENGTHS = np.random.default_rng(3).integers(2, 40, 23).tolist()


class Numbers(Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, i):
        return i


def sampler(rank, padded=False, minibatch=5):
    asked = {"devices": 2, "max_tokens": 60, "averaged": True, "sync": "on-demand", "balancer": "lb-mini"}
    return MinibatchSampler(BalancedBatches(LENGTHS, rank=rank, minibatch=minibatch, **asked), padded)


@pytest.mark.parametrize("padded", [False, True])
def test_each_minibatch_has_its_samples_and_shares_that_average_to_one(padded):
    both = [list(sampler(rank, padded, minibatch=11)) for rank in range(2)]
    assert len(both[0]) == len(both[1]) == len(sampler(0, minibatch=11)) == 2
    every = [[part for device in minibatch for part in device if part.share] for minibatch in zip(*both, strict=True)]
    assert sorted(i for parts in every for part in parts for i in part.places) == list(range(23))
    assert [sum(part.share for part in parts) for parts in every] == pytest.approx([2, 2])
    assert sorted(len(device) for device in (both[0][1], both[1][1])) == [1, 1]
    assert sorted(device[1][0].share for device in both) == [0, 2]  # one sample is left, which one of them runs


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_what_the_sampler_says_epoch_after_epoch(workers):
    usual = DataLoader(Numbers(), collate_fn=sum, num_workers=workers, shuffle=True)
    loader = MinibatchLoader(usual, sampler(1), lambda loaded: [(total, part.share) for total, part in loaded])
    expected = sampler(1)
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        expected.set_epoch(epoch)
        parts = [[(sum(part.places), part.share) for part in minibatch] for minibatch in expected]
        assert list(loader) == parts
        assert len(parts) == len(loader)


def answers_of(sizes):
    """As a trainer has them: prompts end where answers begin."""
    prompt, completion = (max(getattr(size, name) for size in sizes) for name in ("prompt", "completion"))
    asked = torch.tensor([[0] * (prompt - size.prompt) + [1] * size.prompt for size in sizes])
    given = torch.tensor([[1] * size.completion + [0] * (completion - size.completion) for size in sizes])
    draw, found = torch.Generator().manual_seed(1), {"prompt_mask": asked, "completion_mask": given}
    for name, mask in (("prompt_ids", asked), ("completion_ids", given)):
        found[name] = torch.randint(8, 99, mask.shape, generator=draw) * mask + FILL * (1 - mask)
    logps = torch.rand(given.shape, generator=draw) * given
    return found | {"old_per_token_logps": logps, "advantages": torch.rand(len(sizes), generator=draw)}


@given(sizes)
def test_what_is_taken_apart_can_be_put_together_again(sizes):
    answers = answers_of(sizes)
    rows = unpadded(answers | {"num_items_in_batch": torch.tensor(5)})
    assert [sizes_of(row) for row in rows] == sizes
    again = padded(rows, FILL)
    assert again.keys() == answers.keys()
    assert all(torch.equal(again[name], value) for name, value in answers.items())
    answers["completion_mask"] = torch.zeros_like(answers["completion_mask"])  # what counts nothing keeps a token
    assert {size.completion for size in map(sizes_of, unpadded(answers))} == {1}


def swap(rank):
    return swapped([{"from": rank, "to": other, "more": [0] * 1000 * rank} for other in range(2)], torch.device("cpu"))


def test_parcels_come_to_whom_they_are_for(pools):
    for rank, parcels in enumerate(pools(2).run(swap)):
        found = [(parcel["from"], parcel["to"], len(parcel["more"])) for parcel in parcels]
        assert found == [(0, rank, 0), (1, rank, 1000)]
