"""Each step of both mixins has the samples of stock training, however an epoch ends and whoever deals to ranks."""

import pytest
import torch.distributed as dist
from tiny_mixed import mixed, training
from tiny_trainers import both, outcome
from torch.utils.data import DataLoader, DistributedSampler
from transformers import Trainer

pytestmark = pytest.mark.slow


class Seen(Trainer):
    """Notes what runs forward for a gradient, in which step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known = {tuple(self.train_dataset[i]["input_ids"]): i for i in range(len(self.train_dataset))}
        self.seen = []

    def compute_loss(self, model, inputs, *args, **kwargs):
        rows = zip(inputs["input_ids"].tolist(), inputs["attention_mask"].sum(1).tolist(), strict=True)
        self.seen += [(self.state.global_step, self.known[tuple(ids[:length])]) for ids, length in rows]
        return super().compute_loss(model, inputs, *args, **kwargs)


class Distributed(Seen):
    """A loader that nobody has prepared, which drops what is too little for all ranks, and is never told the epoch."""

    def get_train_dataloader(self):
        sampler = DistributedSampler(self.train_dataset, drop_last=True)
        return DataLoader(self.train_dataset, batch_size=2, sampler=sampler, collate_fn=self.data_collator)


def seen(rank, folder, base, samples, changed, kinds=("stock", "on demand", "balanced")):
    """Of each kind of training all ranks' steps and samples, the norms of gradients, and what it ends with."""
    found = []
    for name in kinds:
        usual = {"max_steps": -1, "num_train_epochs": 2, "optim": "sgd", "learning_rate": 0.1}
        trainer = training(mixed(name, base, max_tokens=128), rank, folder / name, samples, **usual | changed)
        trainer.train()
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, trainer.seen)
        found.append((sorted(one for own in every for one in own), outcome(trainer)))
    return found


REBALANCED = {"train_sampling_strategy": "batch_rebalance"}
WAYS = {
    "a ragged epoch": (Seen, 27, {}),
    "fewer samples than ranks need": (Seen, 5, {}),
    "two samples": (Seen, 2, {}),
    "ragged, dropped": (Seen, 27, {"dataloader_drop_last": True}),
    "ragged, batches of both ranks split": (Seen, 27, {"accelerator_config": {"split_batches": True}}),
    "ragged, in order": (Seen, 29, {"train_sampling_strategy": "sequential"}),
    "ragged, by length": (Seen, 29, {"train_sampling_strategy": "group_by_length"}),
    "rebalanced": (Seen, 32, REBALANCED),
    "rebalanced and ragged": (Seen, 27, REBALANCED),
    "rebalanced, with samples for half of the microbatches": (Seen, 10, REBALANCED),
    "rebalanced, dropped": (Seen, 27, REBALANCED | {"dataloader_drop_last": True}),
    "a loader of one's own": (Distributed, 27, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_steps_train_on_the_samples_of_stock_training(pools, tmp_path, way):
    found, _ = both(pools, seen, tmp_path, *WAYS[way])
    (expected, stock), *others = found
    assert expected
    for samples, trained in others:
        assert samples == expected
        assert stock.furthest(trained) < 1e-6
        assert trained.column("grad_norm") == pytest.approx(stock.column("grad_norm"), rel=1e-5)
        assert trained.column("epoch") == pytest.approx(stock.column("epoch"))


def test_an_epoch_without_repeats_has_each_sample_once(pools, tmp_path):
    """Of ranks with unequal numbers of batches, which stock training waits for for ever."""
    changed = {"accelerator_config": {"even_batches": False}, "num_train_epochs": 1}
    for ((samples, _),) in both(pools, seen, tmp_path, Seen, 27, changed, ["on demand"]):
        assert sorted(place for _, place in samples) == [*range(27)]
