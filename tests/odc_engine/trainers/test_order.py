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
    with pytest.raises(TypeError, match="without a length"):
        len(made)


def test_a_loader_that_loads_for_all_ranks_is_refused():
    dispatcher = type("DataLoaderDispatcher", (DataLoader,), {})
    with pytest.raises(InputError, match=r"dispatch_batches, with which one rank .*; leave it off"):
        OwnOrder(dispatcher(SAMPLES, batch_size=2), 1)


@pytest.mark.parametrize("loader", [[], SimpleNamespace(batch_sampler=[[0]]), DataLoader(range(3), batch_size=None)])
def test_a_loader_without_places_is_refused(loader):
    with pytest.raises(InputError, match=r"whose batches are not lists of indices .*; return a torch DataLoader"):
        OwnOrder(loader, 1)


def test_the_plan_deals_the_samples_of_the_minibatch_and_no_others(monkeypatch):
    monkeypatch.setattr("odc_engine.trainers.order.agree", lambda _: None)
    lengths = [5, 9, 2, 7, 3, 8, 1, 4]
    portions = []
    for rank in range(2):
        own = order([(7, 0), (3, 1), (6, 2), (4, 5)], 2)
        planned = PlannedSampler(
            own, lengths, devices=2, rank=rank, max_tokens=12, balancer="lb-mini", padded=bool(rank)
        )
        portions.append(list(planned))
        assert len(planned) == 2
    first, second = ([sorted(i for part in rank[at] for i in part.places) for rank in portions] for at in (0, 1))
    assert sorted(chain.from_iterable(first)) == [0, 1, 3, 7]
    assert sorted(chain.from_iterable(second)) == [2, 4, 5, 6]
    assert all(part.usual[0] for rank in portions for minibatch in rank for part in minibatch)


def test_the_plan_goes_by_what_samples_are_said_to_cost(monkeypatch):
    """Samples of one length, of which one costs more than all others: it runs alone on its device."""
    monkeypatch.setattr("odc_engine.trainers.order.agree", lambda _: None)
    costs = [1.0, 1.0, 99.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    every = [
        PlannedSampler(
            order([(0, 1), (2, 3), (4, 5), (6, 7)], 4),
            [5] * 8,
            devices=2,
            rank=rank,
            max_tokens=12,
            balancer="lb-mini",
            padded=False,
            costs=costs,
        )
        for rank in range(2)
    ]
    run = [sorted(place for part in next(iter(planned)) for place in part.places) for planned in every]
    assert sorted(run) == [[0, 1, 3, 4, 5, 6, 7], [2]]


def test_costs_of_all_samples_are_said_or_of_none():
    with pytest.raises(InputError, match="7 costs for 8 samples"):
        PlannedSampler(
            order([(0, 1), (2, 3), (4, 5), (6, 7)], 4),
            [5] * 8,
            devices=2,
            rank=0,
            max_tokens=12,
            balancer="lb-mini",
            padded=False,
            costs=[1.0] * 7,
        )
