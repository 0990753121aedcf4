"""What ranks tell each other where they meet: all must be there for the same reason.

If one called something else or has an error, every rank raises with the same message, so that none waits forever.
`OnDemand._meet` has the order of all meetings.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from odcsim.errors import InputError

SIZE = 512  # bytes of a device's word


class Reason(IntEnum):
    """Why a rank comes to a meeting."""

    CLOSES = 0
    PUBLISHES = 1  # after it has settled
    SETTLES = 2
    DROPS = 3
    REFUSES = 4
    LOOKS = 5
    CLEARS = 6


# What the user did, for reasons that ranks must have in common.
CAME = {
    Reason.SETTLES: "called settle()",
    Reason.DROPS: "called publish()",
    Reason.LOOKS: "looked at gradients",
    Reason.CLEARS: "called zero_grad()",
}


def word(
    reason: Reason, refusal: InputError | None = None, *, steps: int = 0, pushed: bool = False, whole: bool = False
) -> Tensor:
    """Encode what a rank says: one byte for the reason, and the message of its refusal. `steps`: optimizer steps
    since weights were published, which all ranks must have taken or none. `pushed`: it has pushed gradients.
    `whole`: some of its units show whole parameters, without gradients."""
    text = bytes([min(steps, 255), pushed, whole])
    if refusal is not None:
        reason, text = Reason.REFUSES, b"\0".join(part.encode() for part in (refusal.problem, refusal.fix))
    kept = bytes([reason]) + text[: SIZE - 2]
    return torch.frombuffer(bytearray(kept.ljust(SIZE, b"\0")), dtype=torch.uint8)


def any_pushed(words: Tensor) -> bool:
    return bool(words[:, 2].any())


def disagreement(words: Tensor, way_out: str) -> InputError | None:
    """Return why ranks cannot go on together. `words`: one row per rank."""
    came = words[:, 0].tolist()
    for device, first in enumerate(came):
        if first == Reason.REFUSES:
            problem, _, fix = bytes(words[device, 1:SIZE].tolist()).decode(errors="ignore").rstrip("\0").partition("\0")
            return InputError(f"device {device}: {problem}", fix=fix)
    if len(set(came)) > 1:
        who = [f"device {device} {CAME.get(first, '?')}" for device, first in enumerate(came)]
        return InputError(", ".join(who), fix=way_out)
    steps: Sequence[int] = words[:, 1].tolist()
    if len(set(steps)) > 1:
        who = [f"device {device} {'has' if each else 'has not'}" for device, each in enumerate(steps)]
        problem = f"an optimizer stepped before settle(), as it does where its first state is saved: {', '.join(who)}"
        return InputError(problem, fix="save states of optimizers between two minibatches")
    whole: Sequence[int] = words[:, 3].tolist()
    if came[0] == Reason.LOOKS and any_pushed(words) and any(whole):
        # Who goes through model.parameters() misses gradients then, and clips by another norm.
        problem = f"device {whole.index(1)} looks at gradients while units are whole, and parameters of these show none"
        fix = "evaluate under torch.no_grad(), or reshard() every module given to fully_shard before"
        return InputError(problem, fix=fix)
    return None
