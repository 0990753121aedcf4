"""Check at each synchronization that all ranks are there for the same reason.

If one rank called something else or has an error, every rank raises with the same message, so that none waits forever.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from odcsim.errors import InputError

SIZE = 512  # bytes of a device's word
SETTLES, DROPS, REFUSES, LOOKS, CLEARS = range(1, 6)
_CAME = {
    SETTLES: "called settle()",
    DROPS: "called publish()",
    LOOKS: "looked at gradients",
    CLEARS: "called zero_grad()",
}


def word(
    comes_for: int, refusal: InputError | None = None, *, steps: int = 0, pushed: bool = False, whole: bool = False
) -> Tensor:
    """Encode what a rank says: one byte for the reason, and the message of its refusal. `steps`: optimizer steps
    since weights were published, which all ranks must have taken or none. `pushed`: it has pushed gradients.
    `whole`: some of its units show whole parameters, without gradients."""
    if refusal is None:
        return _bytes(comes_for, bytes([min(steps, 255), pushed, whole]))
    parts = b"\0".join(text.encode() for text in (refusal.problem, refusal.fix))
    return _bytes(REFUSES, parts)


def _bytes(first: int, text: bytes) -> Tensor:
    out = torch.zeros(SIZE, dtype=torch.uint8, device="cpu")
    out[0] = first
    kept = text[: SIZE - 2]
    out[1 : 1 + len(kept)] = torch.frombuffer(bytearray(kept), dtype=torch.uint8) if kept else out[1:1]
    return out


def agree(words: Tensor, way_out: str) -> None:
    """Raise if ranks are here for different reasons. `words`: one row per rank."""
    came = words[:, 0].tolist()
    if len(set(came)) == 1 and came[0] != REFUSES:
        _agree_on_steps(words[:, 1].tolist())
        if came[0] == LOOKS and any_pushed(words):
            _refuse_whole(words[:, 3].tolist())
        return
    for device, first in enumerate(came):
        if first == REFUSES:
            raise _told(device, bytes(words[device, 1:SIZE].tolist()))
    raise _disagreement(came, way_out)


def any_pushed(words: Tensor) -> bool:
    return bool(words[:, 2].any())


def _agree_on_steps(steps: Sequence[int]) -> None:
    if len(set(steps)) > 1:
        who = [f"device {device} {'has' if each else 'has not'}" for device, each in enumerate(steps)]
        problem = f"an optimizer stepped before settle(), as it does where its first state is saved: {', '.join(who)}"
        raise InputError(problem, fix="save states of optimizers between two minibatches")


def _refuse_whole(whole: Sequence[int]) -> None:
    """Who goes through model.parameters() misses gradients then, and clips by another norm."""
    if any(whole):
        problem = f"device {whole.index(1)} looks at gradients while units are whole, and parameters of these show none"
        fix = "evaluate under torch.no_grad(), or reshard() every module given to fully_shard before"
        raise InputError(problem, fix=fix)


def _told(device: int, text: bytes) -> InputError:
    problem, _, fix = text.decode(errors="ignore").rstrip("\0").partition("\0")
    return InputError(f"device {device}: {problem}", fix=fix)


def _disagreement(came: Sequence[int], way_out: str) -> InputError:
    who = [f"device {device} {_CAME.get(first, '?')}" for device, first in enumerate(came)]
    return InputError(f"{', '.join(who)}", fix=way_out)
