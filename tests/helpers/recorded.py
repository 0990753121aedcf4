"""Trainers that note what each microbatch holds, of samples that begin with their number."""

import json
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tiny_trainers import FSDP, WORDS, as_gpus, collate, llama, started, words

BASE = WORDS - 2  # of a sample's number, in its first two tokens


@dataclass(frozen=True)
class Microbatch:
    step: int
    samples: tuple[int, ...]  # in their order
    tokens: int  # of samples
    padded: int  # with what fills them up
    left: bool  # whether gradients were where they go when it was done
    began: float
    seconds: float  # of forward and backward


def numbered(lengths: list[int]) -> list[dict[str, list[int]]]:
    rng, found = np.random.default_rng(4), []
    for i, length in enumerate(lengths):
        text = [1 + i // BASE, 1 + i % BASE, *rng.integers(1, WORDS - 1, length - 2).tolist()]
        found.append({"input_ids": text, "labels": text})
    return found


def number(text: list[int]) -> int:
    return (text[0] - 1) * BASE + text[1] - 1


def texts(inputs) -> list[list[int]]:
    """The samples of a microbatch: rows without their padding, or what is between two first positions."""
    ids = inputs["input_ids"].tolist()
    if "position_ids" not in inputs:
        return [row[: sum(mask)] for row, mask in zip(ids, inputs["attention_mask"].tolist(), strict=True)]
    cuts = [i for i, place in enumerate(inputs["position_ids"][0].tolist()) if place == 0]
    return [ids[0][a:b] for a, b in zip(cuts, [*cuts[1:], len(ids[0])], strict=True)]


def recording(base: type) -> type:
    """The trainer as it is, which notes."""

    def step(self, model, inputs, *more):
        held, padded, began = texts(inputs), inputs["input_ids"].numel(), time.perf_counter()
        loss = base.training_step(self, model, inputs, *more)
        seconds = time.perf_counter() - began
        left = any(parameter.grad is not None for parameter in model.parameters())
        numbers, tokens = tuple(map(number, held)), sum(map(len, held))
        self.seen.append(Microbatch(self.state.global_step, numbers, tokens, padded, left, began, seconds))
        return loss

    return type("Recording", (base,), {"training_step": step, "seen": []})


@dataclass
class OfScripts:
    """What a script of one's own reads beside what transformers does."""

    model_name_or_path: str = ""


def parsed(text: str, kinds: tuple[type, ...], folder: Path):
    """Printed settings by the trainer's own parser, on processors, with samples in their order."""
    from transformers import HfArgumentParser

    _, _, text = text.partition("\naccelerate launch ")
    settings = [line.strip().removesuffix("\\") for line in text.splitlines()[1:]]
    processors = "--bf16 false --use_cpu true --use_liger_kernel false"
    here = f"{processors} --fsdp --fsdp_config '{json.dumps(FSDP)}' --output_dir {folder} "
    quiet = "--report_to none --save_strategy no --disable_tqdm true --train_sampling_strategy sequential"
    words = [*shlex.split(" ".join(settings)), *shlex.split(here + quiet)]
    return HfArgumentParser(kinds).parse_args_into_dataclasses(words)[0]


def run(rank: int, trainer: str, text: str, lengths: list[int], folder: Path, sizes=None):
    """An epoch of the trainer, on this rank, with a model of these sizes: steps that it made, and its microbatches."""
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments
    from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer

    started(rank)
    samples, model = numbered(lengths), llama(**{"max_position_embeddings": 1024} | (sizes or {}))
    if trainer == "trl":
        own = as_gpus(parsed(text, (SFTConfig, ModelConfig, ScriptArguments), folder))
        data = Dataset.from_list(samples)
        made = recording(SFTTrainer)(model=model, args=own, train_dataset=data, processing_class=words())
    else:
        own = as_gpus(parsed(text, (TrainingArguments, OfScripts), folder))
        made = recording(Trainer)(model=model, args=own, train_dataset=samples, data_collator=collate)
    made.train()
    return made.state.global_step, made.seen
