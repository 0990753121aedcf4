"""TRL: supervised fine-tuning and GRPO; its rule is pull request 6092, TokenBudgetBatcher.

Samples as they arrive, each into the open row of least squared lengths with room in the token budget, a row for each
device; where no row has room, all are run and new ones opened.
"""

from odcsim.balance.balancer import Deal, Work
from odcsim.neighbours.accelerate import batch_settings
from odcsim.neighbours.neighbour import (
    IN_PADDED,
    IN_ROWS,
    KEPT,
    LAST,
    LAUNCHED,
    ChosenRow,
    Neighbour,
    Rule,
    Settings,
)
from odcsim.neighbours.packing import Row, best_fit

PACKED = "seq_lengths"  # of a dataset that it packed: the lengths in each row


def settings(row: ChosenRow) -> Settings:
    """On demand the mixin takes the samples of a step as they are, and its own `max_tokens` limits a microbatch."""
    packing = row.sync.meets and not row.each
    settings: Settings = {
        **row.model_and_epochs("--model_name_or_path", "--num_train_epochs"),
        **({} if row.pairs else {"--packing": packing}),
        "--max_length": row.max_tokens if packing else row.longest or row.max_tokens,
        **batch_settings(row),
    }
    if row.recipe.lora:
        settings |= {"--use_peft": None, "--lora_r": row.recipe.lora}
    if row.recipe.quantized:  # as FSDP shards them: stored as bf16
        settings |= {"--load_in_4bit": None, "--use_bnb_nested_quant": None, "--bnb_4bit_quant_storage": "bfloat16"}
    return settings | row.optimizer("--optim")


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
    "TRL 1.16.0, SFTConfig",
    settings,
    LAST,
    "best fit decreasing into packs, which come to devices in turn",
    frozenset({"hybrid", "rank", "quantized", "moments", "pairs", "by_length"}),
    "docs/trl.md",
    deal=deal,
    help="TRL's rows, even in squares of lengths",
    rules=(
        Rule(IN_ROWS, "packs of a thousand samples by best fit decreasing", best_fit, 1000),
        Rule(IN_PADDED, "batches as they come, padded to the longest of each"),
    ),
    assumes={"stack": "plain"},  # its loss is in chunks (1.16.0: loss_type nll)
    ending=KEPT,
    launcher=LAUNCHED,
)
