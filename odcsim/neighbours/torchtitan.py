"""torchtitan: its rule is pull request 3938, proposed.

First fit decreasing by tokens; rows of the most work, by squares, are split in two until they are a multiple of the
devices; rows of like work meet.
"""

from odcsim.balance.balancer import Balancer, Deal, Work
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
)
from odcsim.neighbours.packing import Row, Rows, first_fit_decreasing, in_order
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
        "--training.seq_len": row.max_tokens,
        "--training.local_batch_size": 1,
        "--training.global_batch_size": row.workers * row.accumulation,
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
    {SFT: Entry(f"{TORCHRUN}-m torchtitan.train", settings, "torchtitan 0.3.0, torchtitan/config/configs.py")},
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
