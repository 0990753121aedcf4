"""Seconds of a training step over those of stock FSDP2, in the Trainer of transformers: balanced, and on demand.

    torchrun --nproc-per-node 2 docs/studies/trainer_times.py [--rounds 12] [--steps 8] [--width 256] [--samples 4] \
        [--asleep 20]

Samples of equal lengths say what either costs where there is nothing to win; samples of unequal lengths, what it wins.
Stock is FSDP2 over gloo, and so is what is balanced by the BalancedMixin. All train in turn in the same processes, so
that a busy machine slows all alike; a ratio is the median over rounds, with the interval that holds 95 % of medians of
rounds drawn again. `--asleep`: microseconds that each layer sleeps for a token of a forward pass, padding included, and
twice that in a backward pass, in place of a wide model's compute: so that more processes than cores do not slow one
another.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from odc_engine.trainers import BalancedMixin, OnDemandMixin

WORDS, LONGEST = 512, 1024
EVEN = 50_000  # tokens from which on attention takes more than all else


class Tokens(Dataset[dict[str, list[int]]]):
    def __init__(self, lengths: list[int]) -> None:
        draw = np.random.default_rng(2)
        self.samples = [draw.integers(1, WORDS, length).tolist() for length in lengths]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> dict[str, list[int]]:
        return {"input_ids": self.samples[i], "labels": self.samples[i]}


def collate(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    fill = {"input_ids": 0, "labels": -100}
    return {
        name: torch.tensor([sample[name] + [own] * (longest - len(sample[name])) for sample in samples])
        for name, own in fill.items()
    }


class Clock(TrainerCallback):
    """Seconds of each step but the first two."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())

    def seconds(self) -> float:
        return self.ends[-1] - self.ends[1]


class Asleep(torch.autograd.Function):
    """What a layer gives, after as long as its compute would take."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


def slowed(model: LlamaForCausalLM, seconds: float) -> LlamaForCausalLM:
    """Whose layers sleep so long for each token, and more for those of long samples, as attention takes."""

    def sleep(_: Any, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        rows, longest = given[0].shape[:2]
        slept: torch.Tensor = Asleep.apply(output, seconds * rows * longest * (1 + longest / EVEN))
        return slept

    for layer in model.model.layers if seconds else ():
        layer.register_forward_hook(sleep)
    return model


def arguments(folder: str, steps: int, samples: int) -> TrainingArguments:
    """accelerate shards over processes without GPUs only if it takes them for GPUs."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    own = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=samples,
        learning_rate=1e-4,
        report_to=[],
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        fsdp=True,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
    )
    assert own.device.type == "cpu"  # which makes the state that is changed next
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return own


def trained(kind: type[Trainer], lengths: list[int], asked: argparse.Namespace) -> float:
    steps, width = asked.steps, asked.width
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 4}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS}
    with tempfile.TemporaryDirectory() as folder:
        clock, model = Clock(), slowed(LlamaForCausalLM(LlamaConfig(**sizes, **heads)), asked.asleep * 1e-6)
        own = arguments(folder, steps + 2, asked.samples)
        trainer = kind(model=model, args=own, train_dataset=Tokens(lengths), data_collator=collate, callbacks=[clock])
        trainer.train()
    return clock.seconds() / steps


def interval(ratios: list[float]) -> tuple[float, float]:
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(low), float(high)


def unequal(count: int) -> list[int]:
    """Log-normal lengths of 16 to 1024 tokens, whose longest are ten times the median."""
    return np.clip(np.random.default_rng(5).lognormal(4.6, 1.0, count), 16, LONGEST).astype(int).tolist()


def compare(name: str, lengths: list[int], asked: argparse.Namespace) -> list[str]:
    """With microbatches as large as the longest sample, so that samples of equal lengths run one by one in all."""
    mixins = {"balanced": BalancedMixin, "on-demand": OnDemandMixin}
    kinds = {own: type("Mixed", (mixin, Trainer), {"max_tokens": max(lengths)}) for own, mixin in mixins.items()}
    times: dict[str, list[float]] = {"stock": [], **{own: [] for own in kinds}}
    for turn in range(asked.rounds):
        for own, kind in list({"stock": Trainer, **kinds}.items())[:: 1 if turn % 2 else -1]:
            dist.barrier()
            times[own].append(trained(kind, lengths, asked))
    return [f"{name:<8}  {own:<9}  {line(times[own], times['stock'])}" for own in times]


def line(ours: list[float], stock: list[float]) -> str:
    ratios = [one / other for one, other in zip(ours, stock, strict=True)]
    low, high = interval(ratios)
    ratio = statistics.median(ratios)
    return f"{statistics.median(ours):>7.3f}  {ratio:>5.3f}  {low:.3f} to {high:.3f}  {1 / ratio:>6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--samples", type=int, default=4, help="per device and minibatch")
    parser.add_argument("--asleep", type=float, default=0.0)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    count = asked.samples * dist.get_world_size() * (asked.steps + 2)
    told = ["lengths   trainer    seconds  ratio  95 %            speedup"]
    for name, lengths in (("equal", [256] * count), ("unequal", unequal(count))):
        told += compare(name, lengths, asked)
    if dist.get_rank() == 0:
        print("\n".join(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
