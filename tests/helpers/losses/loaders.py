# ruff: noqa: ARG002 - arguments that a Trainer gives, whether a loss wants them or not
"""Loaders and samplers of one's own: the samples of a minibatch are those that stock training takes."""

from dataclasses import replace

import torch
from torch.utils import data
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, WeightedRandomSampler
from transformers import Trainer

from losses import nets
from losses.kind import Kind, of_bert
from losses.samples import Samples, collate, named, spoken


class Weighted(Trainer):
    """Eight samples of all."""

    def _get_train_sampler(self, train_dataset=None):
        weights = [float(i < 8) for i in range(len(self.train_dataset))]
        return WeightedRandomSampler(weights, 16, generator=torch.Generator().manual_seed(3))


class WeightedUnseeded(Trainer):
    """Drawn from the process's own random numbers, which differ between devices."""

    def _get_train_sampler(self, train_dataset=None):
        return WeightedRandomSampler([float(i < 8) for i in range(len(self.train_dataset))], 16)


class Listed(data.Sampler):
    """Samples, or batches of them, as they are listed."""

    def __init__(self, listed: list) -> None:
        self.listed = listed

    def __len__(self) -> int:
        return len(self.listed)

    def __iter__(self):
        return iter(self.listed)


def backwards(samples: Samples) -> Listed:
    return Listed(list(range(len(samples)))[::-1])


class Plain(Trainer):
    """Every device with all samples, in its own order: what accelerate does not know it does not deal."""

    def get_train_dataloader(self):
        order = backwards(self.train_dataset)
        return DataLoader(self.train_dataset, batch_size=2, sampler=order, collate_fn=self.data_collator)


class Prepared(Plain):
    def get_train_dataloader(self):
        return self.accelerator.prepare(super().get_train_dataloader())


class Distributed(Trainer):
    def get_train_dataloader(self):
        order = DistributedSampler(self.train_dataset, self.args.world_size, self.args.process_index, seed=3)
        return DataLoader(self.train_dataset, batch_size=2, sampler=order, collate_fn=self.data_collator)


class Batches(Trainer):
    """Of samples of like length."""

    def get_train_dataloader(self):
        order = sorted(range(len(self.train_dataset)), key=lambda i: len(self.train_dataset[i]["input_ids"]))
        batches = Listed([order[i : i + 2] for i in range(0, len(order), 2)])
        loader = DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


class InTurn(Trainer):
    """A batch sampler around another sampler, in a worker."""

    def get_train_dataloader(self):
        batches = BatchSampler(backwards(self.train_dataset), 2, drop_last=False)
        how = {"collate_fn": self.data_collator, "num_workers": 1, "multiprocessing_context": "fork"}
        return self.accelerator.prepare(DataLoader(self.train_dataset, batch_sampler=batches, **how))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(spoken().every)


class Streamed(Trainer):
    def get_train_dataloader(self):
        return DataLoader(Stream(), batch_size=2, collate_fn=self.data_collator)


def of_two_keys() -> Samples:
    """Every other sample has types of tokens."""
    data = named(lambda _, rng: int(rng.integers(3)))()
    for sample in data.every[::2]:
        sample["token_type_ids"] = [0] * len(sample["input_ids"])
    return data


def keys_of_all(samples):
    """A batch has what all of its samples have."""
    names = [name for name in samples[0] if all(name in sample for sample in samples)]
    return collate([{name: sample[name] for name in names} for sample in samples])


def drawn(strategy: str) -> Kind:
    return Kind(arguments={"train_sampling_strategy": strategy})


def accelerated(config: dict[str, object]) -> Kind:
    return Kind(arguments={"accelerator_config": config})


KINDS = {
    "the Trainer's own loader": Kind(),
    "`_get_train_sampler` with a `WeightedRandomSampler`": Kind(Weighted),
    "the same, drawn from the process's own random numbers": Kind(WeightedUnseeded),
    "`train_sampling_strategy='group_by_length'`": drawn("group_by_length"),
    "`train_sampling_strategy='sequential'`": drawn("sequential"),
    "`get_train_dataloader` with a plain `DataLoader`, all samples on every rank": Kind(Plain),
    "`get_train_dataloader` that `accelerator.prepare`s it": Kind(Prepared),
    "`get_train_dataloader` with a `DistributedSampler`": Kind(Distributed),
    "`get_train_dataloader` with batches of similar length": Kind(Batches),
    "`get_train_dataloader` with a `BatchSampler` and `num_workers=1`": Kind(InTurn),
    "`dataloader_drop_last=True`": Kind(arguments={"dataloader_drop_last": True}),
    "`accelerator_config={'split_batches': True}`": accelerated({"split_batches": True}),
    "`accelerator_config={'use_seedable_sampler': False}`": accelerated({"use_seedable_sampler": False}),
    "a list as dataset": Kind(data=lambda: spoken().every),
    "samples with different keys": of_bert(nets.bert, of_two_keys, collate=keys_of_all),
    "an `IterableDataset`": Kind(data=Stream),
    "`get_train_dataloader` over an `IterableDataset`": Kind(Streamed),
}
EVERY = {sentence: replace(kind, limits=(64,)) for sentence, kind in KINDS.items()}
