"""Lengths of samples that have no tokens before they are collated."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from odc_engine.trainers import collated
from odcsim.errors import InputError

SIZES, LENGTHS = (3, 1, 7, 2, 5), [3, 9, 23, 18, 21]


def texts():
    """With 0 to 2 images, of eight tokens each."""
    return [{"text": "a" * size, "images": [8] * min(place, 2)} for place, size in enumerate(SIZES)]


def collate(samples):
    """Takes out what it has read, as TRL's does, and draws, as one augments."""
    np.random.random()  # noqa: NPY002
    sizes = [len(sample.pop("text")) + sum(sample.pop("images")) for sample in samples]
    return {"input_ids": torch.zeros(len(samples), max(sizes), dtype=torch.int64)}


@pytest.mark.parametrize("devices", [1, 2, 3, 7])
def test_devices_share_samples_each_of_which_is_collated_alone(monkeypatch, devices):
    loader = DataLoader(texts(), batch_size=4, collate_fn=collate)
    shares = [collated._counted(loader, range(rank, len(SIZES), devices), told=False) for rank in range(devices)]
    assert max(map(len, shares)) == -(-len(SIZES) // devices)

    def met(own):
        assert own == shares[rank]
        return shares

    monkeypatch.setattr(collated, "all_told", met)
    for rank in range(devices):
        assert collated.collated_lengths(loader, rank=rank, devices=devices) == LENGTHS


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
