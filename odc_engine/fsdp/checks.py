"""What is checked, when, and what it says: one row for each mistake that would make gradients wrong.

If two object, the user reads the first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Flag, auto

import torch
from torch import Tensor

from odc_engine.fsdp.inside import in_backward
from odc_engine.fsdp.minibatch import Bypass, Loop, Phase
from odc_engine.fsdp.units import IN_BACKWARD, Unit, bits, cast_since, hook_that_steps, packed
from odcsim.errors import InputError

# A row's words are filled in with what its look finds, or it finds refusals that are ready.
Found = Iterator[dict[str, str] | InputError]
Look = Callable[[Loop, Sequence[Unit], Tensor | None], Found]


class At(Flag):
    """When guards look."""

    PASS = auto()  # before a forward of the whole model
    FORWARD = auto()  # FSDP2 needs a unit whole, even if it is whole already ...
    GRAPH = auto()  # ... and a backward may follow,
    FIRST = auto()  # for the first time in this unit,
    BEGIN = auto()  # in this minibatch
    BACKWARD = auto()  # FSDP2 needs a unit whole for a backward
    GATHER = auto()
    PUSH = auto()
    SETTLE = auto()  # gradients of all units are about to be summed


@dataclass(frozen=True, slots=True)
class Guard:
    """`look`: finds what is wrong with units, and with the shard that FSDP2 passes to a gather. `way_out`: one of the
    Remedies, or words."""

    at: At
    look: Look
    says: str = ""
    way_out: str = ""


def moments(loop: Loop, unit: Unit) -> At:
    """Return what it is when FSDP2 needs a unit whole."""
    if unit.backward:
        return At.BACKWARD
    if not torch.is_grad_enabled():
        return At.FORWARD
    forwarded = loop.minibatch.forwarded
    first = At.GRAPH if unit.index in forwarded else At.GRAPH | At.FIRST
    return At.FORWARD | (first if forwarded else first | At.BEGIN)


def refusals(loop: Loop, at: At, units: Sequence[Unit] = (), mine: Tensor | None = None) -> Iterator[InputError]:
    """Return why what is about to be done must be refused."""
    for guard in CHECKS:
        if guard.at & at:
            for found in guard.look(loop, units, mine):
                if isinstance(found, InputError):
                    yield found
                else:
                    fix = getattr(loop.remedies, guard.way_out, guard.way_out)
                    yield InputError(guard.says.format(**found), fix=fix)


def refuse(loop: Loop, at: At, units: Sequence[Unit] = (), mine: Tensor | None = None) -> None:
    for refusal in refusals(loop, at, units, mine):
        raise refusal


def _broken(loop: Loop, *_: object) -> Found:
    """What all devices have to drop goes on nowhere."""
    if loop.why is not None:
        yield loop.why


def _cast(loop: Loop, units: Sequence[Unit], _: object) -> Found:  # noqa: ARG001
    for unit in units:
        yield from (cast_since(unit.pieces[i].name, unit.inside.shard(i)) for i in unit.inside.cast())


def _changed(loop: Loop, units: Sequence[Unit], _: object) -> Found:
    """Version counters detect most changes at no cost."""
    minibatch = loop.minibatch
    for unit in units:
        if minibatch.stepped or minibatch.versions[unit.index] != unit.versions():
            yield {"unit": unit.name}


def _changed_whole(loop: Loop, units: Sequence[Unit], _: object) -> Found:
    """By other code than FSDP2's gathers."""
    for unit in units:
        noted, now = loop.minibatch.whole_versions[unit.index], unit.whole_versions()
        if noted != now:
            yield {"name": next(p.name for p, a, b in zip(unit.pieces, noted, now, strict=True) if a != b)}


def _settled(loop: Loop, units: Sequence[Unit], _: object) -> Found:
    if loop.phase is Phase.SETTLED:
        yield {"unit": units[0].name}


def _earlier(loop: Loop, units: Sequence[Unit], _: object) -> Found:
    unit, minibatch = units[0], loop.minibatch
    if any(minibatch.unpushed[unit.index]) and unit.index not in minibatch.forwarded:
        yield {"unit": unit.name}


def _other_bits(loop: Loop, units: Sequence[Unit], mine: Tensor | None) -> Found:
    """Changes through `.data`, by a collective into a shard or by a fused optimizer count in no version. Peers read the
    arena and FSDP2 reads the parameters, so that bits are compared at each gather in forward, and where FSDP2 kept a
    unit whole and passes no shard. On a GPU the result would have to be waited for: all flags are read together before
    gradients are used."""
    unit = units[0]
    if unit.backward or (mine is None and not (unit.inside.phase == "FORWARD" and unit.is_whole)):
        return
    published = loop.published(unit)
    own, theirs = bits(packed(unit, published) if mine is None else mine, published)
    if own.is_cuda:
        loop.minibatch.unlike.append(((own != theirs).any(), unit))
    elif not torch.equal(own, theirs):
        yield {"unit": unit.name}


def _unlike(loop: Loop, *_: object) -> Found:
    unlike = loop.minibatch.unlike
    if unlike and torch.stack([flag for flag, _ in unlike]).any():
        yield {"unit": next(unit.name for flag, unit in unlike if flag)}


def _given_up(loop: Loop, *_: object) -> Found:
    if loop.minibatch.given_up is not None:
        yield loop.minibatch.given_up


def _interrupted(loop: Loop, *_: object) -> Found:
    """Sums may have a part of a pass that raised after it had pushed."""
    if loop.minibatch.interrupted:
        yield {}


def _create_graph(loop: Loop, units: Sequence[Unit], _: object) -> Found:  # noqa: ARG001
    """Ask where autograd calls FSDP2's hook before backward: a recomputation of activations enables gradients, too."""
    inside = units[0].inside
    by_autograd = in_backward() and inside.phase == "PRE_BACKWARD"
    if by_autograd and torch.is_grad_enabled() and inside.frees_after_backward:
        yield {"unit": inside.name}


def _replaced(loop: Loop, units: Sequence[Unit], _: object) -> Found:  # noqa: ARG001
    """FSDP2 would put its own back."""
    for unit in units:
        for piece, shard in zip(unit.pieces, unit.inside.shards(), strict=True):
            for module, name in piece.places:
                shown = getattr(module, name, None)
                if shown is not shard and shown is not piece.whole:
                    yield {"name": piece.name}


def _unknown(loop: Loop, *_: object) -> Found:
    known = {*loop.minibatch.wholes}
    for unit in loop.units:
        known.update(map(id, unit.inside.shards()))
    for name, parameter in loop.model.named_parameters():
        if parameter.requires_grad and id(parameter) not in known:
            yield {"name": name}


def _unfrozen(loop: Loop, units: Sequence[Unit], _: object) -> Found:  # noqa: ARG001
    """A parameter that was frozen when the arena was laid out has no memory for gradients there."""
    for unit in units:
        for piece in unit.frozen:
            if piece.parameter.requires_grad:
                yield {"name": piece.name}


def _settings(loop: Loop, units: Sequence[Unit], _: object) -> Found:
    for unit in units:
        noted = loop.settings[unit.index]
        if (now := unit.inside.settings()) != noted:
            yield from ({"unit": unit.name, "what": name.strip("_")} for name in noted if now[name] != noted[name])


def _hooks(loop: Loop, units: Sequence[Unit], _: object) -> Found:  # noqa: ARG001
    """FSDP2 calls none of them; ours detect gradients that bypass it."""
    for unit in units:
        shards = unit.inside.shards()
        for piece in unit.trainable:
            for hook in (getattr(shards[piece.index], "_backward_hooks", None) or {}).values():
                if not isinstance(hook, Bypass):
                    yield {"name": piece.name}
            if getattr(shards[piece.index], IN_BACKWARD, None):
                yield hook_that_steps(piece.name)


def _kept(loop: Loop, units: Sequence[Unit], _: object) -> Found:  # noqa: ARG001
    """Gradients that were accumulated without a push (no_sync), and are in no sum."""
    for unit in units:
        if not unit.inside.reduces:
            yield from ({"name": unit.pieces[i].name} for i in unit.inside.kept())


def _late(loop: Loop, units: Sequence[Unit], _: object) -> Found:  # noqa: ARG001
    for unit in units:
        if unit.inside.reduces:
            yield from ({"name": unit.pieces[i].name} for i in unit.inside.kept())


def _left(loop: Loop, *_: object) -> Found:
    yield from ({"name": name} for name in loop.minibatch.stand_ins.left)


def _touched(loop: Loop, *_: object) -> Found:
    for name, dropped in loop.minibatch.stand_ins.touched():
        yield {"name": name, "done": "dropped" if dropped else "set"}


CHANGED = "weights of {unit} changed since they were published"
CHECKS = (
    Guard(At.FORWARD | At.BACKWARD, _broken),
    Guard(At.FORWARD, _cast),
    Guard(At.FORWARD | At.BACKWARD, _changed, CHANGED, "publish"),
    Guard(
        At.FORWARD | At.BACKWARD | At.SETTLE,
        _changed_whole,
        "a forward pass changes parameter {name}, and each device would change only a temporary copy",
        "change it between settle() and publish(), or make it a buffer",
    ),
    Guard(
        At.FORWARD,
        _settled,
        "forward of {unit} between settle() and publish(), when peers may change their weights",
        "evaluate",
    ),
    Guard(
        At.BACKWARD,
        _settled,
        "backward of {unit} between settle() and publish(), when peers may change their weights",
        "backward",
    ),
    Guard(At.PUSH, _settled, "backward of {unit} after settle()", "backward"),
    Guard(
        At.PUSH,
        _earlier,
        "backward() of a forward pass of {unit} that ran in an earlier minibatch",
        "finish backward before the optimizer steps",
    ),
    Guard(At.FORWARD | At.GATHER, _other_bits, CHANGED, "publish"),
    Guard(At.SETTLE, _unlike, CHANGED, "publish"),
    Guard(At.SETTLE, _given_up),
    Guard(
        At.PASS | At.GRAPH | At.SETTLE,
        _interrupted,
        "a backward pass was interrupted after some of its gradients were pushed",
        "drop",
    ),
    Guard(
        At.BACKWARD,
        _create_graph,
        "create_graph=True needs weights of {unit}, which FSDP2 frees in backward",
        "fully_shard(reshard_after_forward=False) and set_reshard_after_backward(False)",
    ),
    Guard(At.FORWARD, _replaced, "parameter {name} was replaced by another since this OnDemand was made", "replace"),
    Guard(
        At.BEGIN | At.SETTLE,
        _unknown,
        "parameter {name} came after OnDemand was made, and nobody adds up its gradients",
        "join",
    ),
    Guard(At.SETTLE, _replaced, "parameter {name} was replaced by another since this OnDemand was made", "replace"),
    Guard(At.FIRST | At.SETTLE, _unfrozen, "parameter {name} was unfrozen since this OnDemand was made", "unfreeze"),
    Guard(
        At.FIRST | At.SETTLE,
        _settings,
        "FSDP2's communication settings changed for {unit} ({what})",
        "change them before OnDemand is made",
    ),
    Guard(
        At.FIRST | At.SETTLE,
        _hooks,
        "parameter {name} was given a hook on its gradient, which FSDP2 never calls",
        "change",
    ),
    Guard(
        At.SETTLE,
        _kept,
        "the gradient of {name} was accumulated without synchronization and never reduced",
        "set_requires_gradient_sync(True) before the last backward pass of a minibatch",
    ),
    Guard(
        At.SETTLE,
        _late,
        "a gradient of {name} came after the gradients of its unit were pushed",
        "call backward(), and leave torch.autocast, after each microbatch",
    ),
    Guard(At.SETTLE, _left, "the gradient of {name} is still there when the next minibatch has one", "left"),
    Guard(At.SETTLE, _touched, "the gradient of {name} was {done} before settle()", "leave"),
)
