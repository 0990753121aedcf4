"""torchtitan on two processes without GPUs: a model, samples, and the same training stock and on demand.

torchtitan asks GPUs for their names and memory, which `on_processors` answers for processors.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

WORDS = 64
ANSWERS = {
    "get_device_name": lambda *_: "a processor",
    "get_device_properties": lambda *_: SimpleNamespace(total_memory=1 << 34),
    "memory_stats": lambda *_: {},
    "reset_peak_memory_stats": lambda *_: None,
    "empty_cache": lambda: None,
    "current_device": lambda: 0,
}


def on_processors(rank: int) -> None:
    """Before torchtitan is imported."""
    import torch._utils

    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2}.items():
        os.environ.setdefault(name, str(value))  # who runs on one of several machines has been told more
    torch._utils._get_available_device_type = lambda: "cpu"
    for name, answer in ANSWERS.items():
        setattr(torch.cpu, name, answer)
    if not hasattr(torch.distributed, "set_timeout"):  # torch 2.13; torchtitan 0.3 calls it after its first step
        torch.distributed.set_timeout = lambda *_: None


def devices() -> int:
    return int(os.environ["WORLD_SIZE"])


def texts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(2)
    return [rng.integers(1, WORDS, length).tolist() for length in rng.integers(5, 60, count)]


class NoTokenizer:
    build = staticmethod(lambda **_: None)
    to_dict = staticmethod(dict)


def stock_data(count: int, minibatch: int):
    """The minibatches that are planned on demand, one sample after the other, padded to equal counts by nothing."""
    from odc_engine.trainers.minibatches import Portion
    from odc_engine.trainers.titan import BalancedTexts

    class Plain(BalancedTexts):
        def samples(self):
            return texts(count)

        def __iter__(self):
            size, rank = minibatch * devices(), self.batches.rank
            for epoch in range(99):
                order = np.random.default_rng((0, epoch)).permutation(count).tolist()
                for start in range(0, count, size):
                    own = order[start : start + size][rank :: devices()]
                    for portion in [Portion((i,), 1.0) for i in own] + [Portion((0,), 0.0)] * (minibatch - len(own)):
                        yield self._batch(portion)

    return Plain.Config(minibatch=minibatch, max_tokens=64)


def balanced_data(count: int, minibatch: int, **changed):
    from odc_engine.trainers.titan import BalancedTexts

    class Balanced(BalancedTexts):
        def samples(self):
            return texts(count)

    return Balanced.Config(**{"minibatch": minibatch, "max_tokens": 64} | changed)


def config_of(
    trainer: type, folder: Path, data, *, chunked: bool, steps: int, minibatch: int, saved: int = 0, replicas: int = 1
):
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.config import ParallelismConfig, TrainingConfig
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import model_registry

    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:  # flexible attention would be compiled, for minutes
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    loss = CrossEntropyLoss.Config(global_vocab_size=2048)
    sizes = {"local_batch_size": 1, "global_batch_size": minibatch * devices(), "seq_len": 64, "steps": steps}
    over = {"data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": devices() // replicas}
    return trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(num_chunks=4, loss_fn=loss) if chunked else loss,
        dump_folder=str(folder),
        tokenizer=NoTokenizer(),
        dataloader=data,
        optimizer=default_adamw(lr=3e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=1, decay_ratio=0.0),
        training=TrainingConfig(**sizes, mixed_precision_param="float32", disable_cuda_graphs=True),
        parallelism=ParallelismConfig(**over, spmd_backend="partial_dtensor"),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=saved > 0, interval=saved or 500, last_save_model_only=False),
        activation_checkpoint=None,
    )


@dataclass
class TitanTrained:
    weights: dict[str, torch.Tensor]
    losses: list[float]
    norms: list[float]

    def furthest(self, other: "TitanTrained") -> float:
        return max((own - other.weights[name]).abs().max().item() for name, own in self.weights.items())


def trained(config) -> TitanTrained:
    torch.manual_seed(0)
    trainer = config.build()
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other sum
    losses, norms, log = [], [], trainer.metrics_processor.log

    def note(step, loss, highest, norm, **more):
        losses.append(loss)
        norms.append(norm)
        log(step, loss, highest, norm, **more)

    trainer.metrics_processor.log = note
    trainer.train()
    trainer.close()
    named = trainer.model_parts[0].named_parameters()
    weights = {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for name, p in named}
    return TitanTrained(weights, losses, norms)
