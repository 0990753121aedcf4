"""Runs that others measured and published: published.csv and published_asked.csv.

One row is one run at one sequence length: the model's sizes, the machine, how it was run, tokens per second and GPU,
and the peak of memory where it was told. In the first file `recompute` and what follows it are choices of a recipe; in
the second a recipe is given by the flags of `compare`.
"""

import argparse
import csv
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from odcsim import catalog
from odcsim.catalog.hf_config import from_config
from odcsim.cluster import GPU, Cluster, cluster_of
from odcsim.model import Model
from odcsim.recipe import ASKED as CHOICES
from odcsim.recipe import Kernels, Recipe, add_recipe, recipe_of, recipe_words

FILE = Path(__file__).with_name("published.csv")
ASKED = Path(__file__).with_name("published_asked.csv")
LIMITED = "power limited"  # in the name of a source whose GPUs were
GUESSED = "guessed"  # in the name of a source that does not say what it recomputes
_FMS = "https://github.com/foundation-model-stack/fms-acceleration/tree/main/scripts/benchmarks/refs"
_PRIME = "https://github.com/PrimeIntellect-ai/prime-rl/tree/main/benchmarks/baselines"
_TORCHAO = "https://github.com/pytorch/ao/tree/main/benchmarks/float8/training"
SOURCES = {
    "llm-foundry": "https://github.com/mosaicml/llm-foundry/blob/061f2c7/scripts/train/benchmarking/README.md",
    "fms-fsdp": "https://github.com/foundation-model-stack/fms-fsdp/blob/0d31998/README.md",
    "KempnerForge": "https://github.com/KempnerInstitute/KempnerForge/tree/9f3f03a/benchmarks",
    "YaFSDP": "https://github.com/yandex/YaFSDP",
    "torchtitan A100": "https://github.com/pytorch/torchtitan/blob/0413364/docs/performance.md",
    "torchtitan H100": "https://github.com/pytorch/torchtitan/blob/31a17bf/benchmarks/llama3_h100_202412_torchtitan.md",
    "torchtitan H200": "https://github.com/pytorch/torchtitan/tree/1af2937/benchmarks",
    "prime-rl dense full": _PRIME,
    "prime-rl dense LoRA": _PRIME,
    "prime-rl MoE full": _PRIME,
    "prime-rl MoE LoRA": _PRIME,
    "fms-acceleration plain full": _FMS,
    "fms-acceleration plain LoRA": _FMS,
    "fms-acceleration foak full": _FMS,
    "fms-acceleration foak LoRA": _FMS,
    "torchao 8xH100": _TORCHAO,
    "torchao 8xB200 power limited": _TORCHAO,
    "MaxText 70B (JAX)": "https://github.com/NVIDIA/dgxc-benchmarking",
    "ATorch 7B A100": "https://github.com/intelligent-machine-learning/atorch",
    "XTuner (recompute guessed)": "https://github.com/InternLM/xtuner",
    "Megatron-FSDP fp8 (recompute guessed none)": "https://github.com/NVIDIA/Megatron-LM/tree/main/megatron/core/distributed/fsdp",
}
WATTS = 700  # of an H100 that nobody limits; below it clocks fall about as the cube root of the power
_RECOMPUTE = {
    "none": "none",
    "full": "full",
    "selective-op": "operators",
    "selective-layer": "layers",
}
_TOLD = {
    "none": "no recompute",
    "full": "full recompute",
    "operators": "selective",
    "layers": "every 2nd layer",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One published run."""

    source: str
    model: Model
    gpu: GPU
    cluster: Cluster
    recipe: Recipe
    sequence: int
    sequences: int  # of a microbatch
    microbatches: int
    tokens_per_second: float  # and GPU
    peak: float | None  # bytes
    note: str

    @property
    def publisher(self) -> str:
        """Who measured it: what is left out together."""
        return self.source.split()[0]

    @property
    def guessed(self) -> bool:
        """Whether its recipe is in part a guess, so that it is no truth to fit to."""
        return GUESSED in self.source

    @property
    def limited(self) -> bool:
        """Whether its source says that power was limited, and not by how much."""
        return LIMITED in self.source

    @property
    def stated(self) -> bool:
        """Whether its source says all that its seconds depend on."""
        return not self.guessed and not self.limited

    @property
    def how(self) -> str:
        """What was chosen beside the usual, in words."""
        words = [_TOLD[self.recipe.recompute]]
        words += [self.recipe.kernels.stack] if self.recipe.kernels.stack != "tuned" else []
        words += [self.recipe.kernels.precision] if self.recipe.kernels.precision != "bf16" else []
        words += ["adapters"] if self.recipe.lora else []
        words += ["a policy's loss"] if self.recipe.kernels.loss == "policy" else []
        words += ["hybrid"] if self.cluster.nodes > 1 and self.recipe.sharding == "hybrid" else []
        return ", ".join(words)

    @property
    def tokens(self) -> int:
        """Of one microbatch."""
        return self.sequence * self.sequences

    @property
    def seconds(self) -> float:
        """Of one step."""
        return self.tokens * self.microbatches / self.tokens_per_second

    @property
    def size(self) -> str:
        """A band of sizes, in parameters."""
        billions = self.model.parameters / 1e9
        return next(name for name, most in _SIZES if billions < most)

    @property
    def length(self) -> str:
        return next(name for name, most in _LENGTHS if self.sequence <= most)


_SIZES = (("below 1B", 1), ("1B to 5B", 5), ("5B to 20B", 20), ("above 20B", 1e9))
_LENGTHS = (("to 1K", 1024), ("2K", 2048), ("4K", 4096), ("8K", 8192), ("above 8K", 1 << 30))


def read() -> list[Cell]:
    return [_cell(row) for row in _rows(FILE)] + [_asked(row) for row in _rows(ASKED)]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def sources(cells: Iterable[Cell]) -> list[str]:
    return sorted({cell.source for cell in cells})


def _cell(row: dict[str, str]) -> Cell:
    gpu = _gpu(row)
    cluster = cluster_of(gpu, int(row["devices"]), int(row["devices_per_node"]))
    return Cell(
        source=row["source"],
        model=_model(row),
        gpu=gpu,
        cluster=replace(cluster, nic_bandwidth=_nic(row, gpu)),
        recipe=_recipe(row),
        sequence=int(row["sequence"]),
        sequences=int(row["sequences_per_microbatch"]),
        microbatches=int(row["microbatches"]),
        tokens_per_second=float(row["tokens_per_second_per_gpu"]),
        peak=float(row["peak_memory_gb"]) * 1e9 if row["peak_memory_gb"] else None,
        note=row["note"],
    )


def _gpu(row: dict[str, str]) -> GPU:
    """The catalogue's, with what the source says otherwise of its own."""
    gpu = catalog.gpu(row["gpu"])
    if row["memory_tb_s"]:
        gpu = replace(gpu, memory_bandwidth=float(row["memory_tb_s"]) * 1e12)
    if row["watts"]:
        gpu = replace(gpu, matmul_flops=gpu.matmul_flops * (float(row["watts"]) / WATTS) ** (1 / 3))
    return gpu


def _nic(row: dict[str, str], gpu: GPU) -> float:
    stated = row["nic_gbit_s"]
    return float(stated) * 1e9 / 8 if stated else gpu.nic_bandwidth


def _model(row: dict[str, str]) -> Model:
    layers, hidden, heads = (int(row[name]) for name in ("layers", "hidden", "heads"))
    return Model(
        name=row["model"],
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(row["kv_heads"]),
        head_dim=hidden // heads,
        ffn=int(row["ffn"]),
        vocab=int(row["vocab"]),
        tied=row["tied"] == "1",
        plain_mlp=row["gated"] == "0",
        vectors=2 * hidden,
    )


def _recipe(row: dict[str, str]) -> Recipe:
    """As the source says; the loss of all of them is taken over all logits at once."""
    return Recipe(
        sync=row["sync"],
        optimizer=row["optimizer"],
        sharding=row["sharding"],
        exchange="layers",
        kernels=Kernels(
            stack="compiled" if row["compile"] == "1" else "tuned",
            attention=row["attention"],
            precision=row["precision"],
            loss="whole",
        ),
        reduce=row["reduce"],
        recompute=_RECOMPUTE[row["recompute"]],
    )


def _asked(row: dict[str, str]) -> Cell:
    """A run whose recipe is given as flags of `compare`."""
    gpu = catalog.gpu(row["gpu"])
    cluster = cluster_of(gpu, int(row["devices"]), int(row["per_node"]))
    return Cell(
        source=row["source"],
        model=from_config(json.loads(row["model"]), name=row["what"].split()[0], where=ASKED.name),
        gpu=gpu,
        cluster=replace(cluster, nic_bandwidth=_nic(row, gpu)),
        recipe=_flags(f"--sync {row['sync']} {row['flags']}"),
        sequence=int(row["sequence"]),
        sequences=int(row["sequences"]),
        microbatches=int(row["microbatches"]),
        tokens_per_second=float(row["tokens_per_second_per_gpu"]),
        peak=float(row["peak_gb"]) * 1e9 if row["peak_gb"] else None,
        note=row["what"],
    )


def _flags(words: str) -> Recipe:
    parser = argparse.ArgumentParser()
    add_recipe(parser, ("sync", *CHOICES))
    return recipe_of(recipe_words(parser.parse_args(shlex.split(words)))).sharded("full")  # trainers' own
