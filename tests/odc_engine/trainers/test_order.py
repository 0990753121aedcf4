"""A minibatch holds what a trainer's own loader has there, whoever drew it and however it deals to ranks."""

from itertools import chain
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from odc_engine.trainers.order import OwnOrder, PlannedSampler
from odcsim.errors import InputError


class Dealt(BatchSampler):
    """As accelerate deals a sampler's batches to processes, in turn or each in parts."""

    even_batches = True

    def __init__(self, batch_sampler, drop_last=False, split_batches=False):
        self.batch_sampler, self.drop_last, self.split_batches = batch_sampler, drop_last, split_batches

    def set_epoch(self, epoch):
        pass


def order(samples, size, devices, accumulated, shuffled=(), drop_last=False, split=False):
    batches = BatchSampler(shuffled or range(samples), size, drop_last)
    loader = DataLoader(range(samples), batch_sampler=batches)
    loader.__dict__["batch_sampler"] = Dealt(batches, drop_last, split)
    return OwnOrder(loader, devices, accumulated)


@given(st.data())
def test_every_sample_comes_once_in_the_order_drawn(drawn):
    samples, size = drawn.draw(st.integers(1, 60)), drawn.draw(st.integers(1, 5))
    devices, accumulated = drawn.draw(st.integers(1, 4)), drawn.draw(st.integers(1, 4))
    shuffled = drawn.draw(st.permutations(range(samples)))
    minibatches = list(order(samples, size, devices, accumulated, shuffled))
    batches = [shuffled[i : i + size] for i in range(0, samples, size)]
    turns = devices * accumulated
    assert [sorted(i for own in dealt for batch in own for i in batch) for dealt in minibatches] == [
        sorted(chain.from_iterable(batches[i : i + turns])) for i in range(0, len(batches), turns)
    ]
    assert all(len(dealt) == devices and len(dealt[0]) <= accumulated for dealt in minibatches)
    assert minibatches[0][0][0] == tuple(batches[0])
    assert len(order(samples, size, devices, accumulated)) == len(minibatches)


def test_rounds_that_are_not_full_are_dropped_where_the_loader_drops_them():
    """Seven batches of three for two devices: one has no partner."""
    assert [len(own) for dealt in order(23, 3, 2, 2, drop_last=True) for own in dealt] == [2, 2, 1, 1]
    assert len(order(23, 3, 2, 2, drop_last=True)) == 2


def test_batches_that_are_split_are_one_for_all_devices():
    assert list(order(10, 4, 2, 1, split=True)) == [
        (((0, 1),), ((2, 3),)),
        (((4, 5),), ((6, 7),)),
        (((8,),), ((9,),)),
    ]


def test_a_loader_of_ones_own_is_taken_as_it_is(monkeypatch):
    """Each rank's own batches make the minibatch together, whatever they are."""
    loader = DataLoader(range(9), batch_size=2, sampler=[8, 8, 1, 0])
    other = [(3, 4)]
    monkeypatch.setattr("odc_engine.trainers.order.all_told", lambda own: [own, other])
    found = iter(OwnOrder(loader, 2, 1))
    assert [next(found), next(found)] == [(((8, 8),), ((3, 4),)), (((1, 0),), ((3, 4),))]


@pytest.mark.parametrize("loader", [[], SimpleNamespace(batch_sampler=[[0]]), DataLoader(range(3), batch_size=None)])
def test_a_loader_without_places_is_refused(loader):
    with pytest.raises(InputError, match=r"whose batches are not lists of indices .*; return a torch DataLoader"):
        OwnOrder(loader, 2, 1)


def test_the_plan_deals_the_samples_of_the_minibatch_and_no_others(monkeypatch):
    monkeypatch.setattr("odc_engine.trainers.order.agree", lambda _: None)
    lengths = [5, 9, 2, 7, 3, 8, 1, 4]
    portions = []
    for rank in range(2):
        own = order(8, 2, 2, 1, shuffled=[7, 0, 3, 1, 6, 2, 4, 5])
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
            order(8, 2, 2, 2),
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
            order(8, 2, 2, 2),
            [5] * 8,
            devices=2,
            rank=0,
            max_tokens=12,
            balancer="lb-mini",
            padded=False,
            costs=[1.0] * 7,
        )
