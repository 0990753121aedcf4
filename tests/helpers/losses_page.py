"""What losses and loaders come to under the mixin for Hugging Face trainers, as the tables of docs/losses.md.

    python tests/helpers/losses_page.py > docs/losses.md

Each trains on two devices and in one process (tests/helpers/losses, tests/odc_engine/trainers/test_losses.py).
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

HEAD = """# Is my loss safe?

`OnDemandMixin` cuts a minibatch into other microbatches than the stock `Trainer` does. So it has to know what a loss is
a mean over, and finds that out before the first step. What losses and loaders come to, as people write them:

- **trains**: the gradient is that of the loss on the whole minibatch, as one batch in one process, within 1e-5 (in bf16
  2e-2), however many microbatches there are. *Over* is what the loss was found to be a mean over.
- **refused**: on all devices, before the first step, in these words. They end in the line to write.
- *Stock* is the gradient that the `Trainer` takes without the mixin, of the same samples, on two devices with two
  accumulation steps: the same, or another one. Where it is another one, the first step says so, with both norms;
  `learning_rate` and `max_grad_norm` may then want other values.

A loss of your own is tried when training begins: on three samples, in one batch and in several, which takes some twenty
forward passes and leaves no trace. What it is a mean over can be said instead, on the class of the trainer:
`mean_over = "samples"`, `"labels"`, `"next_labels"` (without the first of each row), `"tokens"`, or `"nothing"` for a
sum. What is said is believed, and nothing is tried.

`BalancedMixin` trains and refuses the same, but for `to_local()`, which is refused in other words, and trainers whose
samples are made while training.

What a trial does not see: a part that depends on which samples are in a batch together, and is less than 2e-5 of the
whole loss (5e-3 in bf16); and what a loss divides by later, if that changes while training.

The tests hold this page to what they find.
`python tests/helpers/losses_page.py > docs/losses.md` writes it anew.
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
        parts.append(f"## {title}\n\n| trainer | comes to | over | stock |\n|---|---|---|---|\n{rows}\n")
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
