"""Samples and answers are dealt into microbatches: every one once, within the limit, dear beside dear, nothing lost. A
minibatch holds what each rank's own loader has there, and samples without tokens are collated to count them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from odc_engine import BalancedBatches
from odc_engine.trainers import collated
from odc_engine.trainers.answers import AnswerSize, padded, parts_within, sizes_of, unpadded
from odc_engine.trainers.exchange import swapped
from odc_engine.trainers.minibatches import MinibatchLoader, MinibatchSampler, padded_parts
from odc_engine.trainers.order import OwnOrder, PlannedSampler
from odc_engine.trainers.slices import padded_slices
from odcsim.balance.library import weigh
from odcsim.errors import InputError

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


SAMPLES = range(60)


def ordered(batches, accumulated):
    return OwnOrder(DataLoader(SAMPLES, batch_sampler=batches), accumulated)


def on_ranks(every, accumulated):
    """Of each rank the number of minibatches and what they hold, from the batches that its own loader draws."""
    words, meet, thread = {}, threading.Barrier(len(every), timeout=60), threading.local()

    def tell(own):
        words[thread.rank] = own
        meet.wait()
        found = [words[rank] for rank in range(len(every))]
        meet.wait()
        return found

    def run(rank):
        thread.rank = rank
        made = ordered(every[rank], accumulated)
        return len(made), list(made)

    with patch("odc_engine.trainers.order.all_told", tell), ThreadPoolExecutor(len(every)) as pool:
        return list(pool.map(run, range(len(every))))


drawn = st.lists(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=3).map(tuple), max_size=7)


@given(st.lists(drawn, min_size=1, max_size=4), st.integers(1, 4))
def test_each_rank_has_what_its_own_loader_draws_whatever_that_is(every, accumulated):
    """Repeats, samples on two ranks, and ranks with fewer batches than others or none."""
    (count, minibatches), *others = on_ranks(every, accumulated)
    assert all(other == (count, minibatches) for other in others)
    assert count == len(minibatches) == max(-(-len(own) // accumulated) for own in every)
    for rank, own in enumerate(every):
        assert list(chain.from_iterable(dealt[rank] for dealt in minibatches)) == own
        assert all(len(dealt[rank]) == accumulated for dealt in minibatches[: len(own) // accumulated])


def test_batches_without_a_length_have_none_here():
    class Endless:
        def __iter__(self):
            return iter([[1], [2], [3]])

    made = ordered(Endless(), 2)
    assert list(made) == [(((1,), (2,)),), (((3,),),)]
    with pytest.raises(TypeError):
        len(made)


def test_a_loader_without_own_places_is_refused():
    for_all_ranks = type("DataLoaderDispatcher", (DataLoader,), {})(SAMPLES, batch_size=2)
    for loader in (for_all_ranks, [], SimpleNamespace(batch_sampler=[[0]]), DataLoader(range(3), batch_size=None)):
        with pytest.raises(InputError):
            OwnOrder(loader, 1)


def planned(batches, accumulated, lengths, rank, **more):
    usual = {"devices": 2, "max_tokens": 12, "balancer": "lb-mini", "padded": False}
    return PlannedSampler(ordered(batches, accumulated), lengths, rank=rank, **usual | more)


def test_the_plan_deals_the_samples_of_the_minibatch_and_no_others(monkeypatch):
    monkeypatch.setattr("odc_engine.trainers.order.agree", lambda _: None)
    lengths = [5, 9, 2, 7, 3, 8, 1, 4]
    every = [planned([(7, 0), (3, 1), (6, 2), (4, 5)], 2, lengths, rank, padded=bool(rank)) for rank in range(2)]
    assert [len(one) for one in every] == [2, 2]
    portions = [list(one) for one in every]
    first, second = ([sorted(i for part in rank[at] for i in part.places) for rank in portions] for at in (0, 1))
    assert sorted(chain.from_iterable(first)) == [0, 1, 3, 7]
    assert sorted(chain.from_iterable(second)) == [2, 4, 5, 6]
    assert all(part.usual[0] for rank in portions for minibatch in rank for part in minibatch)


def test_the_plan_goes_by_what_samples_are_said_to_cost(monkeypatch):
    """Samples of one length, of which one costs more than all others: it runs alone on its device."""
    monkeypatch.setattr("odc_engine.trainers.order.agree", lambda _: None)
    batches, costs = [(0, 1), (2, 3), (4, 5), (6, 7)], [1.0, 1.0, 99.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    every = [planned(batches, 4, [5] * 8, rank, costs=costs) for rank in range(2)]
    run = [sorted(place for part in next(iter(own)) for place in part.places) for own in every]
    assert sorted(run) == [[0, 1, 3, 4, 5, 6, 7], [2]]
    with pytest.raises(InputError):
        planned(batches, 4, [5] * 8, 0, costs=costs[1:])


LETTERS, TOKENS = (3, 1, 7, 2, 5), [3, 9, 23, 18, 21]


def texts():
    """With 0 to 2 images, of eight tokens each."""
    return [{"text": "a" * size, "images": [8] * min(place, 2)} for place, size in enumerate(LETTERS)]


def collate(samples):
    """Takes out what it has read, as TRL's does, and draws, as one augments."""
    np.random.random()  # noqa: NPY002
    sizes = [len(sample.pop("text")) + sum(sample.pop("images")) for sample in samples]
    return {"input_ids": torch.zeros(len(samples), max(sizes), dtype=torch.int64)}


@pytest.mark.parametrize("devices", [1, 2, 3, 7])
def test_devices_share_samples_each_of_which_is_collated_alone(monkeypatch, devices):
    loader = DataLoader(texts(), batch_size=4, collate_fn=collate)
    shares = [collated._counted(loader, range(rank, len(LETTERS), devices), told=False) for rank in range(devices)]
    assert max(map(len, shares)) == -(-len(LETTERS) // devices)

    def met(own):
        assert own == shares[rank]
        return shares

    monkeypatch.setattr(collated, "all_told", met)
    for rank in range(devices):
        assert collated.collated_lengths(loader, rank=rank, devices=devices) == TOKENS


def test_samples_and_draws_stay_as_they_were():
    samples, state = texts(), np.random.get_state()  # noqa: NPY002
    collated.collated_lengths(DataLoader(samples, collate_fn=collate), rank=0, devices=1)
    after = np.random.random()  # noqa: NPY002
    np.random.set_state(state)  # noqa: NPY002
    assert np.random.random() == after  # noqa: NPY002
    assert samples == texts()


def test_a_log_gets_a_line_for_each_tenth_of_many(capsys):
    loader = DataLoader(range(2000), collate_fn=lambda samples: {"input_ids": torch.zeros(1, 1 + samples[0] % 5)})
    assert collated.collated_lengths(loader, rank=0, devices=1) == [1, 2, 3, 4, 5] * 400
    assert capsys.readouterr().err.count("\n") == 10


def test_one_device_whose_batches_have_no_tokens_stops_all(monkeypatch):
    monkeypatch.setattr(collated, "all_told", lambda own: [own, "batches without 'input_ids'"])
    with pytest.raises(InputError):
        collated.collated_lengths(DataLoader(texts(), collate_fn=collate), rank=0, devices=2)
