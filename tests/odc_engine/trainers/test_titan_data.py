"""Data for torchtitan, and what is refused, without torchtitan."""

from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from tiny_titan import balanced_data, texts

from odc_engine.trainers.titan import IGNORED, _check
from odcsim.errors import InputError

GIVEN = {"dp_world_size": 2, "tokenizer": None, "seq_len": 64, "local_batch_size": 1, "snapshot_every_n_steps": None}


def data(rank=0, **changed):
    return balanced_data(25, 4, **changed).build(dp_rank=rank, **GIVEN)


def minibatches(loader, count):
    batches = iter(loader)
    return [[next(batches) for _ in range(loader.begin())] for _ in range(count)]


def test_an_epoch_holds_every_token_once_as_input_and_as_label():
    found = []
    for rank in range(2):
        for inputs, labels in chain.from_iterable(minibatches(data(rank), 4)):
            assert inputs["input"].shape == labels.shape == inputs["positions"].shape
            assert inputs["input"].numel() <= 64
            assert inputs["input"].shape[1] % 8 == 0
            assert inputs["positions"][0].tolist() == list(range(labels.shape[1]))
            for row, target in zip(inputs["input"], labels, strict=True):
                known = int((target != IGNORED).sum())
                found += [(*row[:known].tolist(), target[known - 1].item())] if known else []
                assert row[1:known].tolist() == target[: max(known - 1, 0)].tolist()
    assert sorted(found) == sorted(map(tuple, texts(25)))


def test_a_device_without_samples_has_one_microbatch_that_counts_nothing():
    last = [minibatches(data(rank), 4)[3] for rank in range(2)]
    assert [len(minibatch) for minibatch in last] == [1, 1]
    assert sorted(bool((minibatch[0][1] != IGNORED).any()) for minibatch in last) == [False, True]


def test_where_tensors_usually_are_made_is_nothing_to_it():
    """As under `torch.set_default_device("cuda")`: a loader's batches lie on the host."""
    with torch.device("meta"):
        ((batch, labels), *_) = minibatches(data(), 1)[0]
    assert {each.device.type for each in (*batch.values(), labels)} == {"cpu"}


def test_it_goes_on_behind_the_minibatch_that_was_given_out_last():
    one, other = data(), data()
    minibatches(one, 3)
    other.load_state_dict(one.state_dict())
    for mine, its in zip(minibatches(one, 4), minibatches(other, 4), strict=True):
        assert [labels.tolist() for _, labels in mine] == [labels.tolist() for _, labels in its]


def trainer(graphs=False, dataloader=None, **degrees):
    dims = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "ep": 1} | degrees)
    config = SimpleNamespace(training=SimpleNamespace(disable_cuda_graphs=not graphs))
    return SimpleNamespace(config=config, parallel_dims=dims, dataloader=dataloader or data())


def test_what_cannot_be_run_is_refused():
    """Of a loop that begins no minibatch, too."""
    _check(trainer())
    for changed in ({"graphs": True}, {"tp": 2, "pp": 4}, {"dataloader": object()}):
        with pytest.raises(InputError):
            _check(trainer(**changed))
    with pytest.raises(InputError):
        next(iter(data()))
