"""Where an OnDemand is between two publications of weights, and what this rank has done since the last one."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import Enum
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from odc_engine.fsdp.inside import after_backward, in_backward, start_anew
from odc_engine.fsdp.remedies import ATTACHED, BY_HAND, Remedies
from odc_engine.fsdp.stand_in import StandIns
from odc_engine.fsdp.units import Unit, bits, packed, spread
from odc_engine.memory.finite import Checks, Microbatches
from odc_engine.places.lanes import Handle
from odcsim.errors import InputError


class Phase(Enum):
    # Weights are published: gathers, pushes and take() are allowed.
    OPEN = "open"
    # Sums are in `.grad`, and peers may change their weights: no gather, push or take() until publish().
    # A new OnDemand begins here: its weights are not published yet.
    SETTLED = "settled"
    # All ranks have raised why there are no sums, and raise it again until all drop the minibatch with publish().
    BROKEN = "broken"
    # This rank left a meeting by an error of its own, or by a lost peer: it comes to no other, and can only close.
    LOST = "lost"
    # Stock communication is restored, and the memory is freed.
    CLOSED = "closed"


FOLLOWING = {
    # OPEN again: publish() without settle()
    Phase.OPEN: {Phase.SETTLED, Phase.BROKEN, Phase.OPEN, Phase.LOST, Phase.CLOSED},
    Phase.SETTLED: {Phase.OPEN, Phase.LOST, Phase.CLOSED},
    Phase.BROKEN: {Phase.OPEN, Phase.BROKEN, Phase.LOST, Phase.CLOSED},
    Phase.LOST: {Phase.CLOSED},
    Phase.CLOSED: {Phase.CLOSED},
}
REPLACED = "odc_replaced"  # mark on a parameter that was in the model once


def closed() -> InputError:
    return InputError("this communication is closed", fix="make a new OnDemand of the model")


class Minibatch:
    """What this rank has done since weights were published. The next publication replaces it."""

    def __init__(
        self, units: Sequence[Unit], remedies: Remedies, way_out: str, look: Callable[[], bool] | None = None
    ) -> None:
        self.units = units
        # Weights as published, and the tensors that show them: loading with assign=True replaces parameters.
        self.versions = [unit.versions() for unit in units]
        self.whole_versions = [unit.whole_versions() for unit in units]
        self.parameters = {id(shard): shard for unit in units for shard in unit.inside.shards()}
        self.wholes = {id(piece.whole) for unit in units for piece in unit.pieces}
        self.stepped = False  # by an optimizer, which may have changed weights without their versions
        self.steps = 0  # of optimizers with state
        self.unlike: list[tuple[Tensor, Unit]] = []  # on a GPU, flags for other bits than were published, read later
        # Passes.
        self.forwarded: set[int] = set()  # units with a forward that a backward may follow
        self.microbatches = Microbatches(len(units))
        self.deferred = False  # a backward accumulated gradients without a push (no_sync)
        self._pushes_before: int | None = None  # when the backward pass began that has not ended
        # Gradients. `unpushed`: by unit, the trainable parameters with a gradient since its last push; `pushed`: those
        # that were in a push.
        self.unpushed = [[False] * len(unit.trainable) for unit in units]
        self.pushed = [[False] * len(unit.trainable) for unit in units]
        self.pushes = 0  # those that retry() mutes, too
        self.given: Counter[int] = Counter()  # pushes of each unit that a lane was given
        self.flying: deque[Handle] = deque()
        self.torn = False  # a push failed half-way
        self.finite = Checks(way_out)
        self.stand_ins = StandIns(units, remedies, look)
        # How it ends.
        self.cleared = False  # zero_grad() has cleared all its gradients: the next meeting drops what was pushed
        self.looked = False  # settled because somebody read a gradient
        self.given_up: InputError | None = None  # why it cannot be settled any more
        self.turns: set[int] = set()  # attached optimizers that have stepped, or had zero_grad() called instead

    # Passes.

    def use(self, unit: Unit) -> None:
        """Note that FSDP2 needs a unit whole for a backward."""
        self.deferred |= not unit.inside.reduces
        if self._pushes_before is None and in_backward():
            self._pushes_before = self.pushes
            after_backward(self._end_pass)

    def _end_pass(self) -> None:
        self._pushes_before = None

    @property
    def in_pass(self) -> bool:
        """Whether a backward has begun and not ended."""
        return self._pushes_before is not None

    @property
    def interrupted(self) -> bool:
        """Whether a backward was interrupted after some of its gradients were pushed or accumulated."""
        return self.in_pass and (self.deferred or self._pushes_before != self.pushes) and not in_backward()

    def lose_pass(self) -> None:
        """Forget gradients of an interrupted pass that were not pushed."""
        self._pushes_before = None
        self.stand_ins.lay_due()
        self.unpushed = [[False] * len(flags) for flags in self.unpushed]

    # Gradients.

    def collect(self, unit: int) -> list[bool]:
        """Return which of a unit's trainable parameters have a gradient since its last push, for the next one."""
        reached, self.unpushed[unit] = self.unpushed[unit], [False] * len(self.unpushed[unit])
        self.pushed[unit] = [before or now for before, now in zip(self.pushed[unit], reached, strict=True)]
        return reached

    def prepare_push(self, unit: Unit, gradients: Tensor, devices: int, *, replicated: bool, zeros: bool) -> Tensor:
        """Return the gradients of all trainable parameters of a unit, zeros where FSDP2 has packed none, and make way
        for what it is about to add to `.grad` of what it has packed: nothing, if replicas are to be summed later.
        `zeros`: it packs some for parameters without gradients."""
        reached = self.collect(unit.index)
        packed = [there or (zeros and p.whole.requires_grad) for p, there in zip(unit.trainable, reached, strict=True)]
        whole = spread(unit, gradients, packed, devices)
        if whole is gradients:  # all but those of no size, also where somebody has set gradients without autograd
            packed = [there or piece.numel > 0 for piece, there in zip(unit.trainable, packed, strict=True)]
        if self.stand_ins.look is not None and not self.pushes:
            self.stand_ins.lay_all(over=True)
        self.pushes += 1
        self.stand_ins.make_way(unit, [False] * len(packed) if replicated else packed)
        return whole

    def flags(self) -> Tensor:
        """Return one byte per trainable parameter of all units: whether a push had its gradient."""
        return torch.tensor(list(chain(*self.pushed)), dtype=torch.uint8, device="cpu")

    def fly(self, unit: Unit, push: Handle, most: int) -> None:
        """Note a push that a lane was given, and wait until at most so many are under way."""
        self.given[unit.index] += 1
        self.flying.append(push)
        self.wait_for_pushes(most)

    def wait_for_pushes(self, most: int = 0) -> None:
        """Wait until at most so many pushes are under way; raise the error of one that failed."""
        while len(self.flying) > most:
            self.flying.popleft().wait()

    @property
    def has_gradients(self) -> bool:
        """Whether it has pushed any, cleared ones not counted."""
        return self.pushes > 0 and not self.cleared

    def note_cleared(self) -> None:
        """Note if zero_grad() has cleared all gradients of an attached loop since a push."""
        if self.has_gradients and self.stand_ins.look is not None and self.stand_ins.all_cleared():
            self.cleared = True
            self.stand_ins.release()

    def drop(self) -> None:
        """Forget what was pushed before zero_grad(). Forward passes may still have their backward, or be in it."""
        self.cleared, self.given_up, self.torn = False, None, False
        self.pushes = 0
        self._pushes_before = None if self._pushes_before is None else 0
        self.pushed = [[False] * len(flags) for flags in self.pushed]

    def end(self) -> None:
        """Remove what it left in FSDP2 and in `.grad`."""
        for unit in self.units:
            unit.inside.drop_kept()
        self.stand_ins.release()


class Loop:
    """A training loop as all parts of an OnDemand see it. `published`: the shard of a unit that peers read from this
    rank. `why`: for which all ranks have to drop the minibatch, or this one is lost. `look`: settles when somebody
    reads a gradient while an optimizer is attached, and returns False if no rank has gradients. `remedies`: fixes
    named in error messages, for this kind of loop. `way_out`: for gradients that are not finite."""

    def __init__(
        self, model: nn.Module, units: Sequence[Unit], published: Callable[[Unit], Tensor], way_out: str = ""
    ) -> None:
        self.model, self.units, self.published, self._way_out = model, units, published, way_out
        self.remedies, self.phase = BY_HAND, Phase.SETTLED
        self.look: Callable[[], bool] | None = None
        self.why: InputError | None = None
        self.requires = [[shard.requires_grad for shard in unit.inside.shards()] for unit in units]
        self.settings = [unit.inside.settings() for unit in units]
        self._watched: dict[int, Tensor] = {}  # shards with hooks
        self._watches = ExitStack()
        self.minibatch = Minibatch(units, self.remedies, way_out)

    def enter(self, phase: Phase, why: InputError | None = None) -> None:
        """Change the phase. No other code does."""
        assert phase in FOLLOWING[self.phase], f"{self.phase} does not become {phase}"
        self.phase, self.why = phase, why

    def lose(self, error: BaseException) -> None:
        """End all but close() on this rank, which left a meeting by an error."""
        if self.phase is not Phase.LOST:
            what = str(error) or type(error).__name__
            self.enter(Phase.LOST, InputError(f"devices are out of step ({what})", fix=self.remedies.lost))

    def refuse_closed(self) -> None:
        if self.phase is Phase.CLOSED:
            raise closed()
        if self.phase is Phase.LOST and self.why is not None:
            raise self.why

    def attach(self, look: Callable[[], bool]) -> None:
        """Settle from now on when somebody reads a gradient, by `look`."""
        self.look, self.remedies = look, ATTACHED
        self.minibatch.stand_ins.look, self.minibatch.stand_ins.remedies = look, self.remedies

    def speak(self, remedies: Remedies) -> None:
        """Use other words for fixes."""
        self.remedies, self._way_out = remedies, remedies.finite
        self.minibatch.finite = Checks(self._way_out)
        self.minibatch.stand_ins.remedies = remedies

    def begin(self) -> None:
        """Begin a minibatch with the current weights."""
        former, self.minibatch = self.minibatch, Minibatch(self.units, self.remedies, self._way_out, self.look)
        for number, parameter in former.parameters.items():
            if number not in self.minibatch.parameters:
                setattr(parameter, REPLACED, True)
        now = self.minibatch.parameters
        self._watched = {number: each for number, each in self._watched.items() if number in now}
        for unit in self.units:
            self._watch(unit)

    def _watch(self, unit: Unit) -> None:
        """Put stand-ins in the place of what FSDP2 reduces, and refuse gradients that come otherwise. Parameters that
        were replaced, or frozen so far, have no hooks yet."""
        shards = unit.inside.shards()
        for piece in unit.trainable:
            shard: Any = shards[piece.index]
            if shard.requires_grad and id(shard) not in self._watched:
                self._watched[id(shard)] = shard
                self._watches.callback(shard.register_post_accumulate_grad_hook(self._lay).remove)
                self._watches.callback(shard.register_hook(Bypass(self, piece.name)).remove)

    def _lay(self, parameter: Tensor) -> None:
        """FSDP2 has added a push's output to `.grad`. It calls this outside of compiled code."""
        self.minibatch.stand_ins.lay(parameter)

    def mend(self) -> None:
        """Reset FSDP2 after a pass that was interrupted before it pushed: otherwise FSDP2 would continue in the
        middle of it."""
        if self.minibatch.in_pass or any(unit.inside.phase != "IDLE" for unit in self.units):
            self.start_anew()

    def start_anew(self) -> None:
        """Reset after an exception in forward or backward."""
        start_anew(self.model, [unit.inside for unit in self.units])
        self.minibatch.lose_pass()

    def carry_flags(self, unit: Unit) -> None:
        """Carry requires_grad over between a parameter's whole and sharded tensors. After an evaluation or a step, the
        model shows one of the two, and the user freezes that one. FSDP2 copies the flag from the shard only; here the
        latest change counts."""
        known = self.requires[unit.index]
        for i, (piece, shard) in enumerate(zip(unit.pieces, unit.inside.shards(), strict=True)):
            if shard.requires_grad is not known[i] or piece.whole.requires_grad is not known[i]:
                known[i] = not known[i]
                shard.requires_grad_(known[i])
                piece.whole.requires_grad_(known[i])
        self._watch(unit)

    def has_published(self, unit: Unit) -> bool:
        """Whether peers read the weights that this rank has."""
        published = self.published(unit)
        return torch.equal(*bits(packed(unit, published), published))

    def has(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer has parameters of the units."""
        known = self.minibatch.parameters
        return any(id(each) in known for group in optimizer.param_groups for each in group["params"])

    def close(self) -> None:
        """Mark gradients that never arrived, so that nobody takes them for others."""
        self._watches.close()
        self.minibatch.stand_ins.close(pushed=self.minibatch.has_gradients)
        self.enter(Phase.CLOSED)


class Bypass:
    """Hook that autograd calls if a gradient reaches a shard directly: it is of this rank's data only, and not
    reduced."""

    def __init__(self, loop: Loop, name: str) -> None:
        self._loop, self._name = loop, name

    def __call__(self, _: Tensor) -> None:
        problem = f"the loss uses {self._name} outside FSDP's forward, so its gradient would not be reduced"
        raise InputError(problem, fix=self._loop.remedies.add)
