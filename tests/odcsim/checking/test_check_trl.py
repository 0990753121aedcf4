"""Batches that TRL packs and accelerate deals, from their own code."""

import pytest
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from torch.utils.data import BatchSampler, SequentialSampler
from trl import pack_dataset

from odcsim.checking.batches import Dealing, of_value, read
from odcsim.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_a_dataset_that_trl_packed_is_a_plan(tmp_path):
    texts = Dataset.from_dict({"input_ids": [[1] * n for n in (50, 60, 30, 20, 90, 10, 70, 40)]})
    packed = pack_dataset(texts, seq_length=100, strategy="bfd")
    packed.save_to_disk(str(tmp_path / "packed"))
    batches, _ = read(str(tmp_path / "packed"), Dealing(2))
    assert [batch.tokens(mb) for batch in batches for device in zip(*batch.devices, strict=False) for mb in device] == [
        len(row) for row in packed["input_ids"]
    ]
    assert main(["check", str(tmp_path / "packed"), "--devices", "2", "--max-tokens", "100"]) == 0
    assert main(["check", str(tmp_path / "packed"), "--devices", "2", "--max-tokens", "99"]) == 1


def test_batches_in_a_row_come_to_the_devices_that_accelerate_gives_them():
    batches = list(BatchSampler(SequentialSampler(range(24)), 2, drop_last=False))
    theirs = [list(BatchSamplerShard(BatchSampler(SequentialSampler(range(24)), 2, False), 3, i)) for i in range(3)]
    ours = of_value(batches, "a", Dealing(3))
    assert [[batch.devices[i][0] for batch in ours] for i in range(3)] == theirs
