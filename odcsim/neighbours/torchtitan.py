"""torchtitan: its rule is pull request 3938, proposed.

First fit decreasing by tokens; rows of the most work, by squares, are split in two until they are a multiple of the
devices; rows of like work meet.
"""

from dataclasses import replace

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.errors import InputError
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.neighbour import (
    COLLECTIVE,
    DATA,
    GOING_ON,
    IN_FULL_ROWS,
    TORCHRUN,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    start_row,
)
from odcsim.neighbours.packing import Row, Rows, first_fit_decreasing, in_order
from odcsim.neighbours.values import RunEnds, Values
from odcsim.program import WHOLE
from odcsim.trace import SFT

# Of its configurations the one that trains on conversations (qwen3/config_registry.py).
CONVERSATIONS = {"qwen3-8b": ("qwen3", "sft_qwen3_8b_math")}


def settings(row: ChosenRow) -> Settings:
    """A subcommand comes last: what stands behind it is its own."""
    subcommands = {"full": "activation-checkpoint:full", "none": "activation-checkpoint:none"}
    module, config = CONVERSATIONS.get(row.model.rpartition("/")[2].lower(), ("your_module", "your_config"))
    copies = row.devices if row.whole else row.nodes if row.hybrid else 1
    settings: Settings = {
        "--module": module,
        "--config": config,
        "--hf_assets_path": row.weights,
        "--dataloader.dataset_path": DATA,
        "--training.seq_len": row.max_tokens // row.rows,
        "--training.local_batch_size": row.rows,
        "--training.global_batch_size": row.workers * row.accumulation * row.rows,
        "--parallelism.data_parallel_shard_degree": row.devices // row.recipe.context // copies,
        "--parallelism.data_parallel_replicate_degree": copies,
    }
    if row.steps:
        settings["--training.steps"] = row.steps
    if (each := row.recipe.context) > 1:  # of a row each GPU has two parts, one from each end
        settings["--training.seq_len"] = row.max_tokens + -row.max_tokens % (2 * each)
        settings["--parallelism.context_parallel_degree"] = each
    if row.recipe.offload:
        settings["--training.enable_cpu_offload"] = None
    if row.recipe.value("stack") == "compiled":
        settings["--compile.enable"] = None
    return settings | {subcommands.get(row.recipe.recompute, "activation-checkpoint:selective"): None}


# Models of its older files, by name and flavor.
FLAVORS = {
    ("llama3", "8b"): "meta-llama/Llama-3.1-8B", ("llama3", "70b"): "meta-llama/Llama-3.1-70B",
    ("llama3", "405b"): "meta-llama/Llama-3.1-405B", ("qwen3", "0.6b"): "Qwen/Qwen3-0.6B",
    ("qwen3", "1.7b"): "Qwen/Qwen3-1.7B", ("qwen3", "4b"): "Qwen/Qwen3-4B", ("qwen3", "8b"): "Qwen/Qwen3-8B",
    ("qwen3", "14b"): "Qwen/Qwen3-14B", ("qwen3", "32b"): "Qwen/Qwen3-32B",
    ("qwen3", "30b-a3b"): "Qwen/Qwen3-30B-A3B", ("qwen3", "235b-a22b"): "Qwen/Qwen3-235B-A22B",
}  # fmt: skip
AGAIN = {"full": "full", "selective": "operators", "none": "none"}


def read(values: Values, launch: Launcher) -> ChosenRow:
    """A command of today has its recompute as a subcommand, and a file of 0.2 as a mode."""
    values.refuse_over((f"parallelism.{name}_parallel_degree" for name in ("tensor", "pipeline", "expert")), "it")
    shards = max(0, values.whole("parallelism.data_parallel_shard_degree", -1, -1))  # of -1 so many as there are
    copies = values.whole("parallelism.data_parallel_replicate_degree", 1)
    each = values.whole("parallelism.context_parallel_degree", 1)
    devices = launch.gpus or shards * copies * each
    if not devices:
        raise InputError("says nothing of GPUs", where=values.where, fix="say how many GPUs it runs on: --devices")
    shards = shards or devices // copies // each
    if shards * copies * each != devices:
        problem = f"{shards} shards, {copies} copies and {each} parts of a sample on {devices} GPUs"
        raise RunEnds(problem, where=values.where, fix="it ends at once: give degrees whose product they are")
    whole = shards * each == 1 and copies > 1
    sharding = WHOLE if whole else "hybrid" if copies > 1 else "full"
    named = [name.partition(":")[2] for name in values.names.values() if name.startswith("activation-checkpoint:")]
    values.under("activation_checkpoint")
    again = AGAIN.get(named[0] if named else values.text("activation_checkpoint.mode", "selective"), "operators")
    if not named and values.get("activation_checkpoint.mode") is None:
        again = "operators"
    words = {
        "sync": "collective",
        "recompute": again,
        "stack": "compiled" if values.flag("compile.enable") or values.flag("training.compile") else "plain",
        "precision": "fp8" if "float8" in str(values.get("model.converters", "")) else "bf16",
        "attention": "sdpa",
    }
    rows = values.whole(("training.local_batch_size", "training.batch_size"), 8)
    limit, batch = values.whole("training.seq_len", 2048), values.whole("training.global_batch_size", -1, -1)
    workers = devices // each
    if batch > 0 and batch % (rows * workers):
        problem = f"training.global_batch_size {batch} in rows of {rows} on {workers} ranks"
        raise RunEnds(problem, where=values.where, fix="it ends at once: give a multiple")
    steps = 1 if batch < 1 else batch // (rows * workers)
    launch = replace(
        launch, devices=devices, machines=0, per_machine=shards if sharding == "hybrid" else launch.per_machine,
        sharding=sharding, context=each, offload=values.flag("training.enable_cpu_offload"),
        reshard=values.text("parallelism.fsdp_reshard_after_forward", "default") != "never",
    )  # fmt: skip
    row = start_row(values, launch, words, balancer=IN_FULL_ROWS, minibatch=steps, max_tokens=limit * rows, kernel="")
    model = values.get("hf_assets_path") or values.get("model.hf_assets_path")
    flavor = values.text("model.name").lower(), values.text("model.flavor").lower()
    model = FLAVORS.get(flavor, "".join(flavor)) if flavor[0] else model
    most = values.whole("training.steps", 0, 0)
    return replace(row, rows=rows, longest=limit, model=str(model or ""), steps=most, attention="sdpa")


def deal(work: Work) -> Deal:
    """The right one to know what rows of like work bring that are packed by tokens first."""
    tokens, devices = work.tokens.tolist(), work.devices

    def squares(row: Row) -> int:
        return sum(tokens[i] * tokens[i] for i in row)

    rows = first_fit_decreasing(tokens, work.max_tokens)
    while len(rows) % devices and (several := [row for row in rows if len(row) > 1]):
        heaviest = max(several, key=squares)
        rows.remove(heaviest)
        halves: Rows = [[], []]  # by longest processing time first over squares
        for i in sorted(heaviest, key=lambda i: (-tokens[i], i)):
            min(halves, key=squares).append(i)
        rows += halves
    rows += [[] for _ in range(-len(rows) % devices)]
    rows.sort(key=lambda row: (-squares(row), row))
    return Deal([rows[device::devices] for device in range(devices)])


TORCHTITAN = Neighbour(
    "torchtitan",
    "shell",
    {
        SFT: Entry(
            f"{TORCHRUN}-m torchtitan.train",
            settings,
            "torchtitan 0.3.0, torchtitan/config/configs.py",
            read,
            ("torchtitan.train", "torchtitan/train.py", "run_train.sh"),
            ("training.seq_len", "training.local_batch_size", "training.batch_size", "training.steps", "model.flavor"),
        )
    },
    COLLECTIVE,
    (Rule(IN_FULL_ROWS, "packing in order until the next sample does not fit, filled up with padding", in_order),),
    frozenset({"operators", "hybrid", "whole", "on_host", "compiled", "context"}),
    "docs/torchtitan.md",
    "its configuration for conversations, sft_qwen3_8b_math, has Qwen3-8B and rows of question and answer: for others "
    "write one like it",
    balancers=(
        Balancer("torchtitan", deal, "torchtitan's proposed packing, rows of like squares together", by_cost=False),
    ),
    assumes={"stack": "plain"},  # its loss is in chunks (0.3.0: ChunkedLossWrapper, in every configuration of a model)
    ending=GOING_ON,
)
