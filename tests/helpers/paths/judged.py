"""What a kind comes to, stock and on demand, beside one process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paths.followed import NEAR, Alone, alone, apart, apart_in_logits, on_demand
from paths.kind import Gradients, Kind
from paths.stock import Ended

ABORTS, WAITS, WRONG, RIGHT = "aborts", "waits", "wrong", "right"


@dataclass(frozen=True)
class Verdict:
    """`stock`: one of the four; `skipped`: of each rank, how many units it moves no byte of; `units`: how many there
    are beside the root; `wrong`: that on demand is too far from one process, and bytes that are moved for nothing, or
    are not moved though there is a use."""

    stock: str
    skipped: tuple[int, ...]
    units: int
    wrong: tuple[str, ...]


def judged(pools: Any, kind: Kind, ended: Sequence[Ended]) -> Verdict:
    torch.set_num_threads(1)
    expected = alone(kind)
    found = pools(kind.ranks).run(on_demand, kind, timeout=300.0)
    if kind.evaluates:
        far = max(apart_in_logits(one.logits, logits) for one, logits in zip(found, expected.logits, strict=True))
    else:
        far = apart(found[0].gradients, expected.gradients)
    skipped = tuple(sum(moved == 0 for unit, moved in one.moved.items() if unit in expected.units) for one in found)
    wrong = [f"{far:.2g} from one process"] if far > NEAR else []
    for rank, (one, uses) in enumerate(zip(found, expected.uses, strict=True)):
        for unit in sorted(expected.units):
            if (one.moved[unit] > 0) != (unit in uses):
                use = "uses" if unit in uses else "does not use"
                wrong.append(f"rank {rank} moves {one.moved[unit]:,} bytes of {unit}, which it {use}")
    return Verdict(stock(kind, ended, expected), skipped, len(expected.units), tuple(wrong))


def stock(kind: Kind, ended: Sequence[Ended], expected: Alone) -> str:
    """Which of the four. A rank that fails after another's abort has lost its peer."""
    if any(one.code is not None and one.code < 0 for one in ended):
        return ABORTS
    if any(one.code is None or "imed out" in one.words for one in ended):
        return WAITS
    if failed := [one.words for one in ended if one.words]:
        return failed[0]
    if kind.evaluates:
        far = [apart_in_logits(one.result, logits) for one, logits in zip(ended, expected.logits, strict=True)]
    else:
        reference = _with_zeros(expected.gradients, expected)
        far = [apart(_with_zeros(one.result, expected), reference) for one in ended]
    if max(far) <= NEAR:
        return RIGHT
    return f"{WRONG} ({100 * max(far):.0f} %)"


def _with_zeros(gradients: Gradients, expected: Alone) -> Gradients:
    """For stock FSDP2, which is taken to be right with zeros where nobody uses a parameter."""
    shapes = expected.shapes
    return {name: torch.zeros(shapes[name]) if value is None else value for name, value in gradients.items()}
