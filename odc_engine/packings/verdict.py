"""Compare gradients of one minibatch that was run in several ways: one line per way, and what is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from odc_engine.packings.first_step import FirstStep
from odc_engine.packings.packing import AS_IT_IS, OTHERS, Packing

FULL, LOW = 1e-5, 5e-2  # what orders of summation explain in fp32, and roundings in bf16 and fp16
FLOOR = 1e-4  # of the norm of all: below it a parameter's own gradient is noise, as that of a key's bias
SUMS = "let losses be sums over tokens, divided by those of the whole minibatch"
FIXES = {  # by who cuts the minibatch
    "": "multiply a microbatch's mean loss by share.weights[i], or its summed loss by share.token_weight",
    "PlannedMixin": "have compute_loss divide a sum by num_items_in_batch, or say mean_over on your trainer",
    "TitanMixin": SUMS,
    "VerlMixin": SUMS,
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """`held`: how many ways could be held against the usual one."""

    lines: tuple[str, ...]
    held: int
    ok: bool


def untold(base: FirstStep, packing: Packing) -> str:
    """Why it need not be run so."""
    if packing.otherwise and not base.places:
        return "the script cuts its minibatch itself"
    return "each process draws samples of its own" if base.drawn and packing.processes != packing.of else ""


def verdict(base: FirstStep, others: Mapping[Packing, FirstStep]) -> Judgement:
    lines = [f"{AS_IT_IS}: {base.microbatches} microbatches, norm of the gradient {norm(base):.6g}"]
    bound, held = LOW if base.low else FULL, 0
    wrong: list[Packing] = []
    for packing in [one for one in OTHERS if one in others or untold(base, one)]:
        if why := untold(base, packing) or _unlike(base, others[packing]):
            lines.append(f"{packing}: not checked, since {why}")
            continue
        distance, name = furthest(base, other := others[packing])
        held, wrong = held + 1, wrong + [packing] * (not distance <= bound)
        counted = f"{other.microbatches} microbatches, norm {norm(other):.6g}"
        lines.append(f"{packing}: {counted}, furthest {distance:.1e} ({name})")
    if wrong:
        lines.append(f"gradients depend on how the minibatch is cut: {cause(base, wrong[0], others[wrong[0]])}")
    elif held:
        lines.append(f"gradients are equal within {bound:g}")
    return Judgement(tuple(lines), held, not wrong)


def _unlike(base: FirstStep, other: FirstStep) -> str:
    """Why two runs are not of the same samples."""
    alike = base.places == other.places if base.places else base.tokens == other.tokens
    if not alike:
        return "its first minibatch has other samples"
    same = all(name in other.weights and torch.equal(own, other.weights[name]) for name, own in base.weights.items())
    return "" if same else "it begins with other weights; seed what draws them"


def norm(step: FirstStep) -> float:
    return float(torch.stack([gradient.double().norm() for gradient in step.gradients.values()]).norm())


def furthest(base: FirstStep, other: FirstStep) -> tuple[float, str]:
    """Return the largest difference of a parameter's gradient, relative to its norm, and the name; NaN is infinite."""
    floor, found = FLOOR * norm(base), {}
    for name, own in base.gradients.items():
        scale = max(float(own.double().norm()), floor)
        difference = float((other.gradients[name].double() - own.double()).norm())
        relative = difference / scale if scale else difference
        found[name] = relative if relative == relative else float("inf")
    name = max(found, key=lambda each: found[each])
    return found[name], name


def cause(base: FirstStep, packing: Packing, other: FirstStep) -> str:
    """Name the likely cause, and the line to write."""
    if base.mixing:
        return f"{base.mixing[0]} is a batch norm, in which samples of a microbatch depend on each other"
    ratio = norm(other) / norm(base)
    scaled = replace(base, gradients={name: ratio * own for name, own in base.gradients.items()})
    if packing.processes != packing.of and furthest(scaled, other)[0] <= 1e-4:
        less = ratio > 1 and not base.by  # a trainer makes its OnDemand itself
        sums = ", or give OnDemand average=False: weights are for sums" if less else ""
        return f"on {packing} they are {ratio:.4g} times as large; leave the number of processes out of the loss{sums}"
    return f"a loss that is a mean over its own microbatch counts unlike numbers alike; {FIXES[base.by]}"
