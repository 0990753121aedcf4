"""prime-rl: SFT, whose rows are packed in order and filled up."""

from dataclasses import replace

from odcsim.errors import InputError
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.neighbour import (
    COLLECTIVE,
    DATA,
    GITHUB,
    GOING_ON,
    IN_FULL_ROWS,
    KERNEL_NAMES,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    start_row,
)
from odcsim.neighbours.packing import in_order
from odcsim.neighbours.values import RunEnds, Values
from odcsim.program import WHOLE
from odcsim.trace import SFT

SOURCE = f"{GITHUB}/PrimeIntellect-ai/prime-rl at 559b447, packages/prime-rl-configs"
OFF = "None"  # of a section, which TOML cannot say by itself
MODES = {"full": "full", "operators": "selective"}
RL = ("orchestrator", "trainer", "seq_len")  # of a file for `rl`


def settings(row: ChosenRow) -> Settings:
    """Its defaults compile, run layers again, and keep the optimizer's states on the host."""
    again, copies = row.recipe.recompute, row.devices if row.whole else row.nodes if row.hybrid else 1
    settings: Settings = {
        "model.name": row.weights,
        "data.name": DATA,
        "data.seq_len": row.max_tokens // row.rows,
        "data.micro_batch_size": row.rows,
        "data.batch_size": row.workers * row.accumulation * row.rows,
        **_deployment(row),
        **({"max_steps": row.steps} if row.steps else {}),
        **({"model.ac.mode": MODES[again]} if again in MODES else {"model.ac": OFF}),
        **row.kernel("model.attn"),
        "model.optim_cpu_offload": row.recipe.offload,
        "model.ac_offloading": OFF,  # of which no estimate knows what it brings
    }
    if row.recipe.value("stack") != "compiled":
        settings["model.compile"] = OFF
    if copies > 1:
        settings["model.dp_replicate"] = copies
    if row.recipe.context > 1:
        settings["model.cp"] = row.recipe.context
    return settings | ({"model.lora.rank": row.recipe.lora} if row.recipe.lora else {})


def _deployment(row: ChosenRow) -> Settings:
    """Several machines it starts by Slurm alone."""
    if row.nodes == 1:
        return {"deployment.num_train_gpus": row.devices}
    machines = {"deployment.num_train_nodes": row.nodes, "deployment.gpus_per_node": row.per_node}
    return {"deployment.type": "multi_node", **machines}


def read(values: Values, launch: Launcher) -> ChosenRow:
    if any(name.split(".")[0] in RL for name in values.names):
        raise InputError("is for its rl", where=values.where, fix="its sft alone is priced")
    if not launch.gpus:
        several = values.text("deployment.type", "single_node") == "multi_node"
        machines = values.whole("deployment.num_train_nodes", 1) if several else 1
        one, node = values.whole("deployment.num_train_gpus", 1), values.whole("deployment.gpus_per_node", 8)
        launch = replace(launch, machines=machines, per_machine=node if several else one)
    rows, limit = values.whole("data.micro_batch_size", 1), values.whole("data.seq_len", 128)
    each, copies = values.whole("model.cp", 1), values.whole("model.dp_replicate", 1)
    launch = launch.with_context(each, values.where)
    workers, batch = launch.workers, values.whole("data.batch_size", 128)
    if batch % (rows * workers):
        problem = f"data.batch_size {batch} in rows of {rows} on {workers} ranks"
        raise RunEnds(problem, where=values.where, fix="it ends at once: give a multiple")
    off = [name for name in ("ac", "ac_offloading", "compile") if values.text(f"model.{name}") in (OFF, "False")]
    if "ac_offloading" not in off:
        values.note("model.ac_offloading is on by itself: activations on the host are priced as if they stayed")
    named = values.text("model.attn", "auto")
    kernel = "fa3" if named == "auto" else KERNEL_NAMES.get(named, "fa3")
    mode = values.text("model.ac.mode", "full")
    lora = any(name.startswith("model.lora.") for name in values.names)
    words = {
        "sync": "collective",
        "stack": "plain" if "compile" in off else "compiled",
        "recompute": "none" if "ac" in off else "operators" if mode == "selective" else "full",
        "loss": "whole" if values.get("model.fused_lm_head_token_chunk_size", 8192) == "disabled" else "chunked",
        "lora": values.whole("model.lora.rank", 16) if lora else 0,
        "attention": kernel,
    }
    values.under("model.lora")
    whole = copies == launch.gpus > 1
    shards = launch.gpus // copies
    launch = replace(
        launch,
        sharding=WHOLE if whole else "hybrid" if copies > 1 else "full",
        per_machine=shards if copies > 1 and not whole else launch.per_machine,
        offload=values.flag("model.optim_cpu_offload", True),
        reshard=values.flag("model.reshard_after_forward", True),
    )
    steps = batch // (rows * workers)
    row = start_row(values, launch, words, balancer=IN_FULL_ROWS, minibatch=steps, max_tokens=limit * rows, kernel="")
    most, name = values.whole("max_steps", 0, 0), values.text("data.name")
    model = values.text("model.name", "Qwen/Qwen3-0.6B")
    return replace(row, rows=rows, longest=limit * rows, model=model, steps=most, attention=kernel, data=name)


PRIME_RL = Neighbour(
    "prime-rl",
    "toml",
    {
        SFT: Entry(
            "uv run sft @ {file}", settings, SOURCE, read, ("uv run sft", "uv run rl"),
            ("data.seq_len", "data.batch_size", "deployment", "orchestrator", "model.name", "monitors", "max_steps"),
        )
    },
    COLLECTIVE,
    (Rule(IN_FULL_ROWS, "packing in order until the next sample does not fit, filled up with padding", in_order),),
    frozenset({"operators", "hybrid", "whole", "on_host", "rank", "compiled", "context", "attention"}),
    assumes={"stack": "compiled"},  # and its loss is in chunks
    ending=GOING_ON,
)  # fmt: skip
