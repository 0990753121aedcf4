"""What losses and loaders come to under the mixin for Hugging Face trainers, as the tables of docs/losses.md.

    python tests/helpers/losses_page.py > docs/losses.md

Each trains on two devices and in one process (tests/helpers/losses, tests/odc_engine/trainers/test_losses.py).
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

HEAD = """# Is my loss safe?

Does a loss or a data loader still give the right gradient when ranks run other microbatches than the stock `Trainer`?
This page lists common losses, loaders and TRL trainers with the result under `OnDemandMixin`. The mixin has to know how
your loss is normalized, that is, what it is a mean over, and finds that out before the first step.

- **trains**: the gradient is that of the loss on the whole minibatch, as one batch in one process, within 1e-5 (in bf16
  2e-2), for any number of microbatches. *Over* is what the loss was found to be a mean over.
- **refused**: all ranks raise this error before the first step. It ends in the line to write.
- *Stock* compares with the gradient of the `Trainer` without the mixin, for the same samples, on two ranks with two
  gradient accumulation steps: the same, or another. If it is another, the first step says so, with both norms;
  `learning_rate` and `max_grad_norm` may then need other values.

The mixin tries a loss of your own when training begins: on three samples, in one batch and in several. The trial takes
about twenty forward passes and leaves no trace. You can instead say what the loss is a mean over, on the class of the
trainer: `mean_over = "samples"`, `"labels"`, `"next_labels"` (without the first of each row), `"tokens"`, or
`"nothing"` for a sum. The mixin then believes you and tries nothing.

`BalancedMixin` gives the same results, with two exceptions: it refuses `to_local()` in other words, and it refuses
trainers that generate their samples while training.

A trial misses two things: a part of the loss that depends on which samples share a batch and is smaller than 2e-5 of
the whole loss (5e-3 in bf16), and a divisor that changes later in training.

The tests check this page against what they find; `python tests/helpers/losses_page.py > docs/losses.md` writes it.
"""


def row(sentence: str, verdict: Any) -> str:
    comes_to = f"refused: {verdict.refused}" if verdict.refused else "trains"
    return f"| {sentence} | {comes_to} | {verdict.over.replace('_', ' ')} | {verdict.stock} |"


def page(verdicts: dict[str, dict[str, Any]]) -> str:
    """`verdicts`: of each room, by sentences."""
    from losses import ROOMS

    parts = [HEAD]
    for room, title in ROOMS.items():
        rows = "\n".join(row(sentence, verdict) for sentence, verdict in verdicts[room].items())
        parts.append(f"## {title}\n\n| trainer | result | over | stock |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def main() -> None:
    from losses import OF_ROOMS
    from losses.judged import judged
    from pool import Pools

    pools, verdicts = Pools(), {}
    with tempfile.TemporaryDirectory() as folder:
        for room, kinds in OF_ROOMS.items():
            verdicts[room] = {sentence: judged(pools, Path(folder), sentence) for sentence in kinds}
    pools.stop()
    for sentence, verdict in [each for found in verdicts.values() for each in found.items()]:
        if verdict.wrong:
            print(f"WRONG: {sentence}: {verdict.wrong}", file=sys.stderr)
    print(page(verdicts), end="")


if __name__ == "__main__":
    main()
