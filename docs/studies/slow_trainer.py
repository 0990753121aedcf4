"""Why a step of a stock Trainer is slow, what is to be set, and what that brings: promised, then measured.

    python docs/studies/slow_trainer.py [--steps 16] [--width 256] [--rounds 2]

The program of docs/hugging-face.md with a wider model and samples of unlike lengths, on two processes without GPUs:
stock and watched by `odc_engine.watch`, diagnosed by `odcsim diagnose`, then with the mixin that balances and the one
that is on demand. Stock runs and changed ones take turns, so that a busy machine slows all alike. Needs `[trainers]`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
KINDS = {"stock": None, "balanced": "BalancedMixin", "on-demand": "OnDemandMixin"}
PROMISED = {"balanced": "collective", "on-demand": "on-demand"}  # by the sync of the way that it is
WARM = 2  # steps that are not counted
WORDS, LONGEST = 512, 768


def lengths(count: int) -> list[int]:
    """Log-normal, the longest some ten times the median."""
    import numpy as np

    return np.clip(np.random.default_rng(5).lognormal(4.6, 1.0, count), 16, LONGEST).astype(int).tolist()


def trained(kind: str, folder: str, asked: argparse.Namespace) -> None:
    """What one process does."""
    import torch
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    import odc_engine
    from odc_engine import trainers
    from odc_engine.trainers.on_processors import on_processors

    def collate(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(sample["input_ids"]) for sample in samples)
        ids, counted = torch.zeros(len(samples), longest, dtype=torch.int64), torch.zeros(len(samples), longest)
        for row, mask, sample in zip(ids, counted, samples, strict=True):
            row[: len(sample["input_ids"])] = torch.tensor(sample["input_ids"])
            mask[: len(sample["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": counted, "labels": ids.masked_fill(counted == 0, -100)}

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": asked.width, "intermediate_size": 2 * asked.width, "vocab_size": WORDS}
    heads: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    tokens = [[1 + (i + n) % (WORDS - 1) for i in range(n)] for n in lengths(16 * (asked.steps + WARM))]
    on_processors()
    own = TrainingArguments(
        output_dir=folder,
        max_steps=asked.steps + WARM,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        learning_rate=1e-4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        fsdp=True,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
    )
    mixin = KINDS[kind]
    base = type("Changed", (getattr(trainers, mixin), Trainer), {}) if mixin else Trainer
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    trainer = base(model=model, args=own, train_dataset=Dataset.from_dict({"input_ids": tokens}), data_collator=collate)
    trainer.add_callback(odc_engine.watch(folder, every=asked.steps + WARM))
    trainer.train()
    torch.distributed.barrier()
    sys.stderr.flush()
    os._exit(0)  # all is written; gloo's threads do not always end when they are asked to


def run(kind: str, folder: Path, asked: argparse.Namespace) -> str:
    """In two processes; what the watcher said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE)]
    command += ["--kind", kind, "--folder", str(folder), "--steps", str(asked.steps), "--width", str(asked.width)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return "".join(line + "\n" for line in done.stderr.splitlines() if line.startswith("odc_engine.watch"))


def seconds(folder: Path) -> float:
    """A step's, in the mean of all that are counted: they hold the same samples whichever way they run."""
    steps = [json.loads(line) for line in (folder / "watch-rank0.jsonl").read_text().splitlines()[1 + WARM :]]
    return statistics.fmean(step["seconds"] for step in steps)


def diagnosed(folder: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "odcsim", "diagnose", str(folder), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cut(folder: Path) -> None:
    """Without the first steps, which start up."""
    for path in folder.glob("watch-rank*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:1] + lines[1 + WARM :]))


def compared(asked: argparse.Namespace) -> None:
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as home:
        for turn in range(asked.rounds):
            for kind in list(KINDS)[:: 1 if turn % 2 == 0 else -1]:
                said = run(kind, folder := Path(home, f"{kind}-{turn}"), asked)
                times[kind].append(seconds(folder))
                print(f"{kind}: {times[kind][-1]:.3f} s a step; {said}", end="", flush=True)
        cut(first := Path(home, "stock-0"))
        print(f"\n$ odcsim diagnose watched\n{diagnosed(first)}")
        ways = json.loads(diagnosed(first, "--json"))["ways"]
        for kind, sync in PROMISED.items():
            gains = [a / b for a, b in zip(times["stock"], times[kind], strict=True)]
            way = max((w for w in ways if w["sync"] == sync and w["balancer"]), key=lambda w: w["gain"], default=None)
            promise = f"{way['way']}: {way['gain']:.2f} ({way['low']:.2f} to {way['high']:.2f})" if way else "nothing"
            print(
                f"{kind}: promised {promise}, measured {statistics.median(gains):.2f} of {[round(g, 2) for g in gains]}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.kind:
        trained(asked.kind, asked.folder, asked)
    else:
        compared(asked)


if __name__ == "__main__":
    main()
