"""What a kind of trainer comes to on two devices, and whether that is right."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from losses import EVERY
from losses.followed import Mixed, Step, apart, called, in_one_process, on_demand
from losses.kind import Kind

NEAR = 1e-3  # of norms, which are told with four digits
FIGURE = re.compile(r"\d[\d.]*(e[+-]?\d+)?")


@dataclass(frozen=True)
class Verdict:
    """`refused`: in which words; `over`: what the loss is a mean over; `stock`: what the stock Trainer takes for the
    gradient; `wrong`: whatever is neither right nor refused."""

    refused: str = ""
    over: str = ""
    stock: str = ""
    wrong: tuple[str, ...] = ()


def judged(pools: Any, folder: Path, name: str, mixed: Mixed = on_demand) -> Verdict:
    kind = EVERY[name]
    every = list(zip(*pools(2).run(called, folder, name, mixed, timeout=300.0), strict=True))
    if told := [ran[0] for ran in every if isinstance(ran[0], str)]:
        if any(words.startswith("FAILED") for words in told):
            pools(2).stop()  # one of them may wait for the other
        failed = [words for words in told if words.startswith("FAILED") or "; " not in words]
        unlike = len({without_figures(words) for words in told}) > 1 or len(told) < len(kind.limits)
        return Verdict(told[0], wrong=(*failed, *(["refused at some limits alone"] if unlike else [])))
    *own, stock = every
    wrong = []
    for limit, ran in zip(kind.limits, own, strict=True):
        reference = stock[0].gradient if kind.rollouts else in_one_process(folder, kind, ran)
        wrong += [f"{problem} at {limit}" for problem in _problems(kind, ran, reference, stock)]
    first = own[0][0]
    return Verdict("", first.over, "another" if first.norms else "the same", tuple(wrong))


def without_figures(words: str) -> str:
    return FIGURE.sub("#", words)


def _problems(kind: Kind, ran: Sequence[Step], reference: Any, stock: Sequence[Step]) -> Iterator[str]:
    one, other = ran
    far = apart(one.gradient, reference)
    if far > kind.bound and not kind.declared:
        yield f"{far:.2g} from one process"
    if apart(one.gradient, other.gradient) > 0:
        yield "devices have unlike gradients"
    if [step.substeps for step in ran] != [max(0, step.microbatches - 1) for step in ran]:
        yield f"on_substep_end {[step.substeps for step in ran]} times"
    if any(step.seen is not None and {*step.seen} != {step.microbatches} for step in ran):
        yield f"counted {[step.seen for step in ran]} microbatches"
    own, usual = (sorted(place for step in steps for place in step.places) for steps in (ran, stock))
    if usual and own != usual:
        yield f"samples {own}, in stock training {usual}"
    yield from _of_norms(kind, one, stock[0])


def _of_norms(kind: Kind, own: Step, stock: Step) -> Iterator[str]:
    """Both are told if they differ, and not if they do not."""
    if kind.declared:
        return
    if own.norms is None:
        if _unlike(own.norm, stock.norm, max(NEAR, kind.bound)):
            yield f"norm {own.norm:.4g}, in stock training {stock.norm:.4g}, of which nobody tells"
    elif _unlike(own.norms[0], own.norm, NEAR) or (_unlike(own.norms[1], stock.norm, NEAR) and not kind.as_run):
        yield f"norms told {own.norms}, and are {own.norm:.4g} and {stock.norm:.4g}"


def _unlike(one: float, other: float, near: float) -> bool:
    return abs(one - other) > near * max(one, other)
