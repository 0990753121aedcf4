"""Whole minibatches out of a DataLoader: the samples of the plan, within the limit, epoch after epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from odc_engine import BalancedBatches
from odc_engine.trainers.minibatches import MinibatchLoader, MinibatchSampler, padded_parts

LENGTHS = np.random.default_rng(3).integers(2, 40, 23).tolist()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, i):
        return i


def sampler(rank, padded=False, **changed):
    asked = {"devices": 2, "minibatch": 5, "max_tokens": 60, "averaged": True} | changed
    batches = BalancedBatches(LENGTHS, rank=rank, sync="on-demand", balancer="lb-mini", **asked)
    return MinibatchSampler(batches, padded)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(50, 300))
def test_padded_microbatches_hold_every_sample_once_within_the_limit(lengths, limit):
    parts = padded_parts(range(len(lengths)), np.array(lengths, dtype=np.int64), limit)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(part and len(part) * max(lengths[i] for i in part) <= limit for part in parts)


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
