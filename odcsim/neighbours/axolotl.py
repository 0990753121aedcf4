"""axolotl: supervised fine-tuning."""

from collections.abc import Sequence
from dataclasses import replace

from odcsim.errors import InputError
from odcsim.neighbours.accelerate import read_length_of_run
from odcsim.neighbours.launch import Launcher, with_deepspeed, with_fsdp
from odcsim.neighbours.neighbour import (
    DATA,
    DROPS,
    EACH_BATCH,
    GITHUB,
    IN_BATCHES,
    IN_FULL_ROWS,
    IN_PADDED,
    IN_ROWS,
    KEPT,
    KERNEL_NAMES,
    LAST,
    PLAIN,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    read_adapters,
    read_bits,
    read_optimizer,
    start_row,
)
from odcsim.neighbours.packing import Rows, first_fit
from odcsim.neighbours.values import Values
from odcsim.program import WHOLE
from odcsim.trace import SFT

MOST = 200  # samples of a row
CUT = {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"], "cut_cross_entropy": True}


def settings(row: ChosenRow) -> Settings:
    """By itself it fills rows up with padding, which costs as much as samples; flattened batches have none."""
    full, flat = row.balancer == IN_FULL_ROWS, row.balancer != IN_PADDED
    packs = {"sequence_len": row.max_tokens // row.rows, "sample_packing": True, "pad_to_sequence_len": full}
    counts = {"sequence_len": row.longest or row.max_tokens, "sample_packing": False, "batch_flattening": flat}
    if row.whole and row.recipe.optimizer == "fp32" and not row.recipe.lora:  # FSDP alone keeps others in fp32
        problem = "without sharding axolotl keeps weights and moments in bf16, and was priced with them in fp32"
        raise InputError(problem, fix="ask again with --optimizer pure")
    settings: Settings = {
        **row.model_and_epochs("base_model", "num_epochs"),
        "datasets": [{"path": DATA, "type": "chat_template"}],
        "learning_rate": 2e-5,
        "bf16": True,
        **(counts if row.each else packs),
        **row.kernel("attn_implementation"),
        "micro_batch_size": row.each or row.rows,
        "gradient_accumulation_steps": row.accumulation,
        "gradient_checkpointing": row.recipe.recomputes,
    }
    if not row.whole:
        fsdp = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": True}
        settings |= {"fsdp_version": 2, "fsdp_config": fsdp | {"offload_params": row.recipe.offload}}
    if row.chunked:
        settings |= CUT
    if row.recipe.value("stack") == "compiled":
        settings["torch_compile"] = True
    if row.meets_each and not row.meets:
        settings["accelerator_config"] = EACH_BATCH
    if row.hybrid:
        settings |= {"dp_shard_size": row.per_node, "dp_replicate_size": row.nodes}
    if row.recipe.lora:
        settings |= {"adapter": "qlora" if row.recipe.quantized else "lora", "lora_r": row.recipe.lora}
    if row.recipe.quantized:
        settings["load_in_4bit"] = True
    return settings | row.optimizer("optimizer")


def read(values: Values, launch: Launcher) -> ChosenRow:
    """Packed rows are filled up to their length unless it is told not to. Longer samples are dropped."""
    if (kind := values.get("rl")) is not None:
        raise InputError(f"rl is {kind}", where=values.where, fix="its supervised training alone is priced")
    if values.get("fsdp_config") or values.get("fsdp") or any(name.startswith("fsdp_config.") for name in values.names):
        launch = with_fsdp(launch, values, ("fsdp_config.fsdp_", "fsdp_config."))
    elif (file := values.get("deepspeed")) is not None:
        launch = with_deepspeed(launch, file, values.folder)
    for name in ("fsdp_config", "fsdp_version", "fsdp"):
        values.under(name)
    values.refuse_over(("tensor_parallel_size",), "tensor parallelism")
    copies, each = values.whole("dp_replicate_size", 1), values.whole("context_parallel_size", 1)
    if copies > 1 and launch.sharding == "full":
        launch = replace(launch, sharding="hybrid", per_machine=values.whole("dp_shard_size", 1))
    limit, size = values.whole("sequence_len", 512), values.whole("micro_batch_size", 1)
    steps = values.whole("gradient_accumulation_steps", 1)
    if count := values.whole("batch_size", 0, 0):  # of a rank: with both it ends, and only one can be edited
        fix = f"write gradient_accumulation_steps: {max(1, count // size)} instead"
        raise InputError(f"batch_size is {count}", where=values.where, fix=fix)
    kernels = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager",
               "flex_attention": "flex_attention", "xformers_attention": "sdpa"}  # fmt: skip
    named = next((kernel for name, kernel in kernels.items() if values.get(name) is True), "")
    again, chunked = (
        values.get("gradient_checkpointing", False),
        ("cut_cross_entropy", "liger_fused_linear_cross_entropy"),
    )
    adapter = values.text("adapter")
    each_batch = bool(values.get("accelerator_config.gradient_accumulation_kwargs.sync_each_batch", False))
    words = {
        **PLAIN,
        "sync": "collective" if launch.meets_each or each_batch or steps == 1 else "deferred",
        "recompute": "full" if again not in (False, None) or launch.recompute else "none",
        **({"loss": "chunked"} if any(values.get(name) for name in chunked) else {}),
        **({"stack": "compiled"} if values.get("torch_compile") is True else {}),
        **read_optimizer(values, "optimizer"),
        **read_adapters(values, adapter in ("lora", "qlora"), "lora_r", 8, read_bits(values)),
    }
    bf16 = values.get("bf16") in (True, "auto", "full")
    if bf16 and launch.sharding == WHOLE and not adapter and "optimizer" not in words:
        words["optimizer"] = "pure"  # it loads weights in bf16, and nobody keeps others
    if named and "attn_implementation" not in values:
        words["attention"] = KERNEL_NAMES[named]
    row = start_row(
        values, launch.with_context(each, values.where), words, balancer=IN_PADDED, minibatch=size * steps, each=size,
        longest=limit, model=values.text("base_model"), cutting=DROPS,
        **read_length_of_run(values, "num_epochs"),
    )  # fmt: skip
    row = replace(row, attention=row.recipe.value("attention"), data=_data(values))
    if (values.flag("sample_packing") or values.flag("batch_flattening")) and row.attention == "eager":
        values.note("samples of a row attend to each other under eager attention: set attn_implementation")
    if values.flag("sample_packing"):
        full = values.get("pad_to_sequence_len", True) is not False
        rule = IN_FULL_ROWS if full else IN_ROWS
        return replace(row, balancer=rule, each=0, rows=size, minibatch=steps, max_tokens=limit * size)
    return replace(row, balancer=IN_BATCHES) if values.flag("batch_flattening") else row


def _data(values: Values) -> str:
    sets = values.get("datasets") or []
    values.under("datasets")
    return str(sets[0].get("path", "")) if isinstance(sets, list) and sets and isinstance(sets[0], dict) else ""


def rows(lengths: Sequence[int], limit: int) -> Rows:
    return first_fit(lengths, limit, MOST)


AXOLOTL = Neighbour(
    "axolotl",
    "yaml",
    {
        SFT: Entry(
            "axolotl train {file} --launcher torchrun -- --nnodes {machines} --nproc_per_node {per_machine}",
            settings,
            f"axolotl 0.19.0, src/axolotl/utils/schemas ({GITHUB}/axolotl-ai-cloud/axolotl)",
            read,
            ("axolotl train", "axolotl.cli.train", "axolotl.train"),
            ("base_model", "micro_batch_size", "sample_packing", "sequence_len", "num_epochs"),
        )
    },
    LAST,
    (
        Rule(IN_ROWS, f"packs of at most {MOST} samples, each as it comes into the first with room", rows, 100_000),
        Rule(IN_BATCHES, "batches as they come, flattened"),
    ),
    frozenset({"hybrid", "whole", "on_host", "rank", "quantized", "moments", "chunked", "attention", "compiled"}),
    assumes=PLAIN,
    ending=KEPT,
)
