"""TRL: SFT, DPO and GRPO; its rule is pull request 6092, TokenBudgetBatcher.

Samples as they arrive, each into the open row of least squared lengths with room in the token budget, a row for each
device; where no row has room, all are run and new ones opened.
"""

from dataclasses import replace

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.errors import InputError
from odcsim.neighbours.accelerate import MARKS, batch_settings, read_arguments
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.neighbour import (
    ACCELERATE_LAUNCH,
    DATA,
    IN_BATCHES,
    IN_PADDED,
    IN_ROWS,
    KEPT,
    LAST,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    read_adapters,
    read_bits,
)
from odcsim.neighbours.packing import Row, best_fit
from odcsim.neighbours.values import Values
from odcsim.program import WHOLE
from odcsim.trace import DPO, GRPO, SFT

VLLM = "--vllm_"
TRL_MARKS = (
    "dataset_name", "max_length", "max_seq_length", "use_peft", "packing", "num_generations", "padding_free",
    "dataset_mixture", "attn_implementation", "max_prompt_length", "max_completion_length", "torch_dtype",
    "lora_r", "lora_target_modules", "load_in_4bit",
)  # fmt: skip
KNOWS = frozenset({
    "hybrid", "whole", "rank", "quantized", "moments", "by_length", "attention", "policy", "compiled", "flattened",
    "reshard",
})  # fmt: skip
PACKED = "seq_lengths"  # of a dataset that it packed: the lengths in each row


def settings(row: ChosenRow) -> Settings:
    """On demand the mixin takes the samples of a step as they are, and its own `max_tokens` limits a microbatch."""
    packing = row.sync.meets and not row.each
    return {
        **_base(row),
        "--packing": packing,
        "--max_length": row.max_tokens // row.rows if packing else row.longest or row.max_tokens,
        **batch_settings(row),
        **_flattened(row),
    }


def _flattened(row: ChosenRow) -> Settings:
    return {"--padding_free": True} if row.balancer == IN_BATCHES else {}


def dpo_settings(row: ChosenRow) -> Settings:
    """The reference model's log-probabilities are computed before, and not again in each epoch."""
    length = {"--max_length": row.longest or row.max_tokens, "--precompute_ref_log_probs": not row.passes}
    return {**_base(row), **length, **batch_settings(row), **_flattened(row)}


def grpo_settings(row: ChosenRow) -> Settings:
    """A process generates for all updates at once, and cuts what it has into their microbatches. A reference model runs
    where its divergence has a weight; the old policy, where answers are trained on after an update."""
    settings = _base(row) | batch_settings(row)
    settings["--steps_per_generation"] = settings["--gradient_accumulation_steps"] * row.updates
    if row.engine_gpus:  # generation was priced by an inference engine
        settings |= {"--use_vllm": None, f"{VLLM}mode": "colocate"}
    return settings | {
        **row.generation("--max_steps", f"{VLLM}tensor_parallel_size", f"{VLLM}gpu_memory_utilization", row.updates),
        "--num_generations": row.rollouts,
        "--max_completion_length": row.answer or row.longest or row.max_tokens,
        "--reward_funcs": "your_rewards.reward",
        "--beta": 0.04 if row.passes > (row.updates > 1) else 0.0,
    }


def _base(row: ChosenRow) -> Settings:
    settings: Settings = {
        **row.model_and_epochs("--model_name_or_path", "--num_train_epochs"),
        "--dataset_name": DATA,
        **row.kernel("--attn_implementation"),
    }
    if row.recipe.lora:
        settings |= {"--use_peft": None, "--lora_r": row.recipe.lora}
    if row.recipe.quantized:  # as FSDP shards them: stored as bf16
        settings |= {"--load_in_4bit": None, "--use_bnb_nested_quant": None, "--bnb_4bit_quant_storage": "bfloat16"}
    return settings | row.optimizer("--optim")


def read(values: Values, launch: Launcher) -> ChosenRow:
    """A limit of nothing cuts nothing. Of several rows in a microbatch it has the tokens of all."""
    row, limit = _read_base(values, launch), _limit(values)
    each, steps = row.each, row.minibatch // row.each
    if values.flag("packing"):
        if values.text("packing_strategy", "bfd") == "wrapped":
            values.note("packing_strategy wrapped cuts samples at the ends of rows: priced as bfd, which cuts none")
        if row.attention not in ("fa2", "fa3"):
            values.note("packing without flash attention: samples of a row attend to each other")
        if row.group_by_length:
            values.note("train_sampling_strategy group_by_length does nothing beside packing")
        if not limit:
            raise InputError("packing without max_length", where=values.where, fix="give the tokens of a row")
        return replace(
            row, balancer=IN_ROWS, each=0, rows=each, minibatch=steps, max_tokens=limit * each, longest=limit
        )
    balancer = IN_BATCHES if values.flag("padding_free") else IN_PADDED
    if balancer == IN_BATCHES and row.attention not in ("fa2", "fa3"):
        values.note("padding_free without flash attention: samples of a microbatch attend to each other")
    return replace(row, balancer=balancer, longest=limit)


def read_dpo(values: Values, launch: Launcher) -> ChosenRow:
    row, limit = _read_base(values, launch), _limit(values)
    balancer = IN_BATCHES if values.flag("padding_free") else IN_PADDED
    passes = 0 if values.flag("precompute_ref_log_probs") else 1
    return replace(row, kind=DPO, balancer=balancer, longest=limit, passes=passes)


def read_grpo(values: Values, launch: Launcher) -> ChosenRow:
    """A reference model passes where its divergence has a weight; the old policy, where answers serve again."""
    row = _read_base(values, launch)
    each = values.whole("num_generations", 8)
    count = values.whole("steps_per_generation", row.accumulation)
    if whole := values.whole("generation_batch_size", 0, 0):
        count = max(1, whole // (row.each * row.workers))
    updates = max(1, count // row.accumulation) * values.whole("num_iterations", 1)
    engine = values.whole("vllm_tensor_parallel_size", 1) if values.flag("use_vllm") else 0
    if values.text("vllm_mode", "colocate") == "server" and engine:
        values.note("vllm_mode server: GPUs of the server are beside those that train")
    return replace(
        row,
        kind=GRPO,
        rollouts=each,
        updates=updates,
        passes=(values.number("beta", 0.0) > 0) + (updates > 1),
        answer=values.whole("max_completion_length", 512),
        prompt=values.whole("max_prompt_length", 0, 0),
        engine_gpus=engine,
        memory_share=values.number("vllm_gpu_memory_utilization", 0.3) if engine else 0.0,
        steps=row.steps // updates,
    )


def _limit(values: Values) -> int:
    """To which samples are cut; 0 where somebody says that nothing limits them. Before TRL 0.20 by another name."""
    if "max_length" in values.names and "max_length" not in values:
        return 0
    return values.whole("max_seq_length", 1024) if "max_length" not in values else values.whole("max_length", 1024)


def _read_base(values: Values, launch: Launcher) -> ChosenRow:
    row = read_arguments(values, launch, {"stack": "plain"}, again=True, bf16=True)
    adapted = values.flag("use_peft")
    words = read_adapters(values, adapted, "lora_r", 16, read_bits(values))
    if values.flag("use_liger_kernel"):
        values.note("use_liger_kernel: TRL's own loss is in chunks already; Liger's other kernels are not priced")
    loaded, mixed = values.first(("dtype", "torch_dtype"), "float32"), values.flag("bf16", True)
    if (launch.sharding == WHOLE or not mixed) and loaded in ("bfloat16", "float16", "auto"):
        words["optimizer"] = "pure"  # FSDP keeps others in fp32 where precision is mixed
    return replace(row, recipe=row.recipe.by(**words), data=values.text("dataset_name"))


def deal(work: Work) -> Deal:
    """The right one to know what balancing by squares comes to, of samples as they arrive."""
    tokens, devices = work.tokens.tolist(), work.devices
    slots: list[list[Row]] = [[[]] for _ in range(devices)]
    squares, left = [0] * devices, [work.max_tokens] * devices
    for i, length in enumerate(tokens):
        if max(left) < length:  # no open row has room: all are run, and new ones opened
            for mine in slots:
                mine.append([])
            squares, left = [0] * devices, [work.max_tokens] * devices
        device = min((d for d in range(devices) if left[d] >= length), key=lambda d: (squares[d], d))
        slots[device][-1].append(i)
        squares[device] += length * length
        left[device] -= length
    return Deal(slots)


TRL = Neighbour(
    "trl",
    "shell",
    {
        kind: Entry(
            f"{ACCELERATE_LAUNCH}-m trl.scripts.{kind}",
            of,
            f"TRL 1.16.0, {kind.upper()}Config",
            back,
            (f"trl.scripts.{kind}", f"trl {kind}", f"scripts/{kind}.py", f"{kind}.py"),
            (*MARKS, *TRL_MARKS),
            marks,
        )
        for kind, of, back, marks in (
            (SFT, settings, read, ("packing", "assistant_only_loss", "eval_packing")),
            (DPO, dpo_settings, read_dpo, ("precompute_ref_log_probs", "max_prompt_length", "beta", "loss_weights")),
            (GRPO, grpo_settings, read_grpo, ("num_generations", "max_completion_length", "use_vllm", "reward_funcs")),
        )
    },
    LAST,
    (
        Rule(IN_ROWS, "packs of a thousand samples by best fit decreasing", best_fit, 1000, (SFT,)),
        Rule(IN_PADDED, "batches as they come, padded to the longest of each"),
    ),
    KNOWS,
    "docs/trl.md",
    balancers=(Balancer("trl", deal, "TRL's rows, even in squares of lengths", by_cost=False),),
    assumes={"stack": "plain"},  # its loss is in chunks (1.16.0: loss_type nll)
    ending=KEPT,
)
