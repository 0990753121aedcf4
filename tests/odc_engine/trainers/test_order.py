"""A minibatch holds what each rank's own loader has there, whoever drew it and however it deals to ranks."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from odc_engine.trainers.order import OwnOrder, PlannedSampler
from odcsim.errors import InputError

SAMPLES = range(60)


def order(batches, accumulated):
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
        made = order(every[rank], accumulated)
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

    made = order(Endless(), 2)
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
    return PlannedSampler(order(batches, accumulated), lengths, rank=rank, **usual | more)


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
