"""On-demand communication for a model sharded by FSDP2, through its public hooks.

    fully_shard(...)                          # as always
    odc = OnDemand(model)
    odc.attach(optimizer)                     # its steps settle before, and publish after
    for minibatch in data:
        for batch in my_share(minibatch):     # any number of microbatches, also none
            loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

settle() is a meeting: every push has arrived, and `.grad` holds the mean over all devices. publish() is another: the
new weights are there for everybody. Without attach() a loop calls settle() before the step and publish() after
zero_grad(), on every device.

Gathers pull peers' shards, pushes add to the owner's sum; neither needs the peer to do anything. The sum over
microbatches and devices is divided by the number of devices, as stock FSDP2 does; `average=False` leaves it a sum, for
losses weighed by the whole minibatch (odc_engine.token_mean).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from odc_engine.backends.base import COMM, MAIN, PeerMemory
from odc_engine.backends.patience import hinting
from odc_engine.fsdp import checks, units
from odc_engine.fsdp.agreement import CAME, SIZE, Reason, any_pushed, disagreement, word
from odc_engine.fsdp.attach import Attachment
from odc_engine.fsdp.checks import At
from odc_engine.fsdp.communication import Batch, Communication
from odc_engine.fsdp.inside import in_backward, insides, stock_afterwards, uncompiled, usual_timeout
from odc_engine.fsdp.minibatch import Loop, Phase, closed
from odc_engine.fsdp.remedies import BY_HAND, Remedies
from odc_engine.fsdp.replicas import Replicas, agreed_by_all
from odc_engine.fsdp.retry import Retry, backward, halved
from odc_engine.fsdp.stand_in import drop_gradients
from odc_engine.fsdp.units import Unit, pack, set_grads
from odc_engine.memory.arena import Arena
from odc_engine.memory.arenas import arena_on, memory_for
from odc_engine.places.lanes import DONE, Handle, Lane
from odc_engine.record import Recorder, Silence
from odcsim.errors import InputError, nearest
from odcsim.program import NODES
from odcsim.recipe import ACCUMULATE, FAR


class OnDemand(Communication):
    """Replaces a sharded model's all-gathers and reduce-scatters. Every rank makes one, at the same time.

    `timeout`: seconds after which a rank that is alive but silent is reported (default: torch's own); a dead rank is
    reported at once. `meets`: every transfer synchronizes all ranks, in one lane, as FSDP's collectives would over the
    same memory: the baseline to compare with. `average`: gradients are divided as stock FSDP2 does (by the number of
    ranks, or by a gradient_divide_factor set before); else they are sums over ranks. `trail`: compute waits for the
    push so many positions back, which still holds a buffer (FSDP2 has 2; 1 waits for every push at once).
    `devices_per_node`, for hybrid sharding: each group of so many consecutive ranks holds all weights and sums of
    gradients, gathers and pushes stay inside the group, and groups exchange both once per minibatch. The model itself
    is sharded over all ranks by FSDP2 in any case. `far="hierarchical"`: after publish(), new weights come into a node
    unit by unit, each rank fetching its part, instead of all at once while every rank waits.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: PeerMemory | None = None,
        accumulate: str | None = None,
        timeout: float | None = None,
        meets: bool = False,
        check_finite: bool = True,
        average: bool = True,
        trail: int = 2,
        devices_per_node: int | None = None,
        far: str = "each",
        recorder: Recorder | None = None,
    ) -> None:
        for value, known, what in ((accumulate, ACCUMULATE, "accumulate"), (far, FAR, "far")):
            if value is not None and value not in known:
                raise InputError(f"unknown {what} mode '{value}'", fix=nearest(value, list(known)))
        self.model, self.meets, self.recorder, self._silent = model, meets, recorder or Silence(), recorder is None
        self._trail, self._check_finite = trail, check_finite
        with ExitStack() as opened:
            if memory is None:
                patience = usual_timeout(model) if timeout is None else timeout
                make = partial(memory_for, model, patience, units.devices_of(model))
                self.memory = agreed_by_all(units.meshes_of(insides(model)), opened, make)
            else:
                self.memory = opened.enter_context(memory)
            self.rank, self.size = self.memory.rank, self.memory.size
            found = units.sharded(model) if self.size > 1 else []
            opened.enter_context(stock_afterwards(found))
            self.replicas = Replicas(units.meshes_of(found), next(model.parameters()).device, self.memory.timeout)
            opened.enter_context(self.replicas)
            devices = self.size * self.replicas.count
            self.scales = [units.scale(each, devices, average=average) for each in found]
            self.units = units.units_of(model, found)
            self.memory.meet(MAIN)  # it names who could not come so far, for whom a collective would wait
            arena = arena_on(self.memory, [unit.shape for unit in self.units], accumulate, devices_per_node)
            self._arena: Arena | None = arena
            opened.callback(self._forget_arena)
            self._open_lanes(opened, far, devices_per_node)
            for unit in self.units:
                self._plug(unit, opened)
            way_out = "" if memory else BY_HAND.finite  # who brings the memory is no loop of a user's
            self._loop = Loop(model, self.units, self._published, way_out=way_out)
            opened.callback(self._loop.close)
            self._retry, self._attachment = Retry(self._loop), Attachment(self._loop, self)
            opened.callback(self._attachment.close)
            before = model.register_forward_pre_hook(uncompiled(self._before_pass), prepend=True)
            opened.callback(before.remove)
            vars(self).update({each.__name__: uncompiled(each) for each in (self.meet_to_settle, self.renew)})
            self.replicas.begin()
            self.publish()
            self._opened = opened.pop_all()

    def _open_lanes(self, opened: ExitStack, far: str, devices_per_node: int | None) -> None:
        """One lane for gathers and one for pushes; with hierarchical transfers another, in which a rank fetches units
        from other nodes one by one."""
        if far != "each" and (self.meets or devices_per_node is None):
            problem = "transfers that meet" if self.meets else "no nodes"
            raise InputError(
                f"hierarchical transfers with {problem}", fix="give devices_per_node, and leave `meets` out"
            )

        def lane(name: str) -> Lane:
            made = self.memory.place.lane(name)
            opened.callback(made.close)
            return made

        self._gathers = lane("gather")
        self._pushes = self._gathers if self.meets else lane("push")
        self._nodes = lane(NODES) if far != "each" and self.arena.nodes > 1 else None
        self._fetches: dict[int, Handle] | None = {}  # from other nodes, by units; None: published, and not begun

    def _plug(self, unit: Unit, opened: ExitStack) -> None:
        unit.fsdp.set_custom_all_gather(cast(Any, Gather(self, unit)))
        unit.fsdp.set_custom_reduce_scatter(cast(Any, Push(self, unit)))
        unit.fsdp.set_force_sum_reduction_for_comms(True)
        unit.fsdp.set_gradient_divide_factor(1.0)
        opened.callback(unit.inside.pack_zeros(meets=self.meets))
        opened.callback(unit.inside.before_use(lambda: self._before_use(unit)))
        for i, piece in enumerate(unit.trainable):
            reach = uncompiled(partial(self._reach, unit.index, i))
            opened.callback(cast(Any, piece.whole).register_post_accumulate_grad_hook(reach).remove)

    def _published(self, unit: Unit) -> Tensor:
        """Return the shard of a unit that peers read from this rank."""
        return self.arena.weights(self.rank, unit.index)

    def _reach(self, unit: int, piece: int, _: Tensor) -> None:
        """Note that a gradient has reached a whole parameter, however it is used."""
        self._loop.minibatch.unpushed[unit][piece] = True
        if self.replicas.any:  # FSDP2 may have been told otherwise since it asked for the unit
            self.units[unit].inside.leave_replicas()

    # The training path: what FSDP2 asks for, in forward and backward.

    def _before_pass(self, *_: object) -> None:
        """Check before a forward of the whole model, and reset FSDP2 after a pass that raised before it pushed."""
        checks.refuse(self._loop, At.PASS)
        if self._loop.minibatch.in_pass and not in_backward():
            self._loop.mend()
        self._loop.minibatch.microbatches.begin()

    def _before_use(self, unit: Unit) -> None:
        """Check when FSDP2 needs a unit whole. One that is still whole from an earlier pass is not gathered again."""
        loop, minibatch = self._loop, self._loop.minibatch
        if self.replicas.any:
            unit.inside.leave_replicas()
        at = checks.moments(loop, unit)
        if at is At.BACKWARD:
            minibatch.use(unit)
        else:
            loop.carry_flags(unit)
        checks.refuse(loop, at, [unit])
        if at & At.GRAPH:
            minibatch.forwarded.add(unit.index)
        self._retry.use(unit)

    def gather(self, unit: Unit, mine: Tensor, out: Tensor) -> Handle:
        """Start to copy every rank's shard of a unit into `out`."""
        checks.refuse(self._loop, At.GATHER, [unit], mine)
        fetched = self._fetch_units().get(unit.index, DONE)
        pull = partial(self.arena.gather, unit.index, out)
        return self._gathers.give(self._recorded("gather", unit.index, pull, fetched))

    def push(self, unit: Unit, gradients: Tensor) -> None:
        """Start to add a unit's gradients to their owners' sums, once few enough pushes are under way."""
        checks.refuse(self._loop, At.PUSH, [unit])
        self._drop_cleared()
        minibatch, arena = self._loop.minibatch, self.arena
        how = {"replicated": self.replicas.any, "zeros": self.meets}
        whole = minibatch.prepare_push(unit, gradients, self.size, **how)
        if self._retry.mutes(unit):
            return
        which = minibatch.microbatches.of_push(unit.index)

        def add() -> None:
            if self._check_finite:
                minibatch.finite.check(whole, unit.name, self.rank, which)
            minibatch.torn = True
            arena.push(unit.index, whole)
            minibatch.torn = False

        minibatch.fly(unit, self._pushes.give(self._recorded("push", unit.index, add)), self._trail - 1)

    def _recorded(self, kind: str, unit: int, move: Callable[[], None], after: Handle = DONE) -> Callable[[], None]:
        """Return a transfer for a lane, which synchronizes before if transfers do. Unit -1: all, between nodes."""
        move = self.replicas.hearing(move)
        if self._silent and not self.meets and after is DONE:
            return move
        recorder, number = self.recorder, self.recorder.given(kind, unit)

        def run() -> None:
            after.check()
            asked = recorder.tick()
            if self.meets:
                self.memory.meet(COMM)
            move()
            recorder.done(number, asked, recorder.tick())

        return run

    def _fetch_units(self) -> dict[int, Handle]:
        """Start to fetch what other nodes hold, unit by unit in the order of use, once per publication."""
        if self._fetches is None and self._nodes is not None:
            fetch = [self._recorded(NODES, unit.index, partial(self.arena.bring, unit.index)) for unit in self.units]
            self._fetches = {unit: self._nodes.give(move) for unit, move in enumerate(fetch)}
        return self._fetches or {}

    def drain(self) -> None:
        self._gathers.drain()
        self._pushes.drain()

    # The end of a minibatch.

    def _meet(self, reason: Reason, refusal: InputError | None = None, *, keep: bool = False) -> None:
        """Meet the other ranks: the order of all meetings, in every arena. tests/helpers/meetings_model.py follows it
        line by line. `keep`: publish, and leave `.grad` as it is."""
        loop, arena, minibatch = self._loop, self.arena, self._loop.minibatch
        if reason in CAME:
            # All are here for the same, or all raise the same and are still in step.
            says: Any = {"pushed": minibatch.pushes > 0, "whole": any(u.trainable and u.is_whole for u in self.units)}
            sums = reason in (Reason.SETTLES, Reason.LOOKS)
            said = word(reason, refusal, steps=minibatch.steps if sums else 0, **says)
            self._finish_pushes()
            mine = torch.cat([said, minibatch.flags()])
            arena.notes(self.rank, len(mine)).copy_(mine)
            with self.recorder.span("meeting"), hinting(loop.remedies.collective):
                arena.meet()
            every = arena.every_note(len(mine))
            words = self.replicas.every(every[:, :SIZE])
            if (why := disagreement(words, loop.remedies.together)) is not None:
                why = loop.why or why  # settle() again raises the same
                loop.enter(Phase.BROKEN, why)
                arena.meet()  # all ranks have read it, before anyone writes the next word
                raise why
            if reason is Reason.LOOKS and not any_pushed(words):
                arena.meet()
                return
        if reason is Reason.CLEARS:
            for unit in self.units:
                arena.clear(unit.index)
            arena.meet()  # nobody adds to a sum that its owner has not cleared
            minibatch.drop()
        elif reason in (Reason.SETTLES, Reason.LOOKS):
            loop.enter(Phase.SETTLED)
            if arena.nodes > 1:
                if arena.offer_sums():
                    arena.meet()
                self._recorded("push", -1, arena.sum_nodes)()
            self._set_grads(every[:, SIZE:])
        elif reason in (Reason.DROPS, Reason.PUBLISHES):
            self._write_weights(keep)
            if self.size > 1 and arena.nodes > 1 and self._nodes is None:
                if not self.meets:
                    with self.recorder.span("meeting"):
                        self.memory.meet(MAIN)  # all shards are written, and all sums read
                self._recorded("gather", -1, arena.fetch)()
            if self.size > 1:
                with self.recorder.span("meeting"):
                    self.memory.meet(MAIN)
            if self._nodes is not None:
                arena.begin()
                self._fetches = None
                if self._silent:  # else the first gather records it, in the next minibatch
                    self._fetch_units()
            loop.enter(Phase.OPEN)
        elif reason is Reason.CLOSES:
            self.memory.leave()

    def _finish_pushes(self) -> None:
        """Wait until all pushes are done, and until other ranks have what this one fetches for them."""
        if self._fetch_units() and self._nodes is not None:
            self._nodes.drain()
        self._pushes.drain()
        self._loop.minibatch.finite.settle()
        self.arena.complete()

    def _set_grads(self, flags: Tensor) -> None:
        """Set each `.grad` to the sum over ranks. `flags`: of all ranks, the parameters that each used."""
        anybody = iter(self.replicas.every(flags).amax(dim=0).tolist())
        for unit in self.units:
            used = [next(anybody) for _ in unit.trainable]
            total = self.replicas.sum(self.arena.gradients(unit.index))
            set_grads(unit, total, used, self.scales[unit.index])
            unit.fsdp.reshard()  # else a rank that only evaluated shows whole parameters, without gradients
        self._loop.minibatch.stand_ins.arrive()

    def _write_weights(self, keep: bool) -> None:
        """Write this rank's weights for peers to read, and begin a minibatch with them."""
        loop = self._loop
        loop.mend()
        loop.minibatch.end()
        if self.rank == 0:
            self.memory.refill()  # all ranks have passed the last meeting, and take() waits for the one below
        with self.recorder.span("publish"):
            for unit in self.units:
                unit.inside.finish_gather()
                unit.fsdp.reshard()  # a whole copy that outlived the minibatch holds the old weights
                pack(unit, loop.published(unit))
                drop_gradients(unit, keep)
                increment_version([piece.whole for piece in unit.pieces])  # backward over the former ones fails
                if self.arena.nodes == 1:  # else other nodes may still read the sums
                    self.arena.clear(unit.index)
            loop.begin()

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Whoever leaves here by an error that not all raise may have missed a meeting, or come to one too many. So it
        comes to no other: all ranks hear of it, and this one can only close."""
        try:
            yield
        except BaseException as error:
            if self.size > 1 and error is not self._loop.why:
                self._loop.lose(error)
                self.memory.fail(error)
                self.replicas.fail(error)
            raise

    def _drop_cleared(self) -> None:
        """Drop what zero_grad() has cleared inside a minibatch, on all ranks, before other gradients come."""
        minibatch = self._loop.minibatch
        minibatch.note_cleared()  # by zero_grad() of the model
        if minibatch.cleared and self._loop.phase is Phase.OPEN:
            with self._in_step():
                self._meet(Reason.CLEARS)

    # What a loop calls.

    def _forget_arena(self) -> None:
        """Its views would keep the memory."""
        self._arena = None

    @property
    def arena(self) -> Arena:
        if self._arena is None:
            raise closed()
        return self._arena

    @property
    def settled(self) -> bool:
        return self._loop.phase is Phase.SETTLED

    def speak(self, remedies: Remedies) -> None:
        """Use other words for the fixes that error messages name."""
        self._loop.speak(remedies)

    def attach(self, *optimizers: Optimizer) -> None:
        """Make steps of these optimizers settle before (if nobody has) and publish after the last of them.

        Reading a gradient before the step, for example to clip it, settles. Loading into the model publishes. `.grad`
        stays until zero_grad().
        """
        self._loop.refuse_closed()
        if self.size > 1:
            self._attachment.attach(optimizers)

    def settle(self) -> None:
        self._loop.refuse_closed()
        if self.size > 1 and not (self.settled and self._loop.minibatch.looked):
            self.meet_to_settle(Reason.SETTLES)

    def meet_to_settle(self, reason: Reason) -> None:
        loop = self._loop
        loop.refuse_closed()
        if self.settled:
            raise InputError("settle() twice for one minibatch", fix=loop.remedies.again)
        with self._in_step():
            self._drop_cleared()
            if loop.minibatch.in_pass and not loop.minibatch.interrupted:
                loop.mend()  # what the pass has left whole is not kept back
            problem = loop.why or next(checks.refusals(loop, At.SETTLE, loop.units), None)
            if problem is None:
                loop.mend()
            self._meet(reason, problem)

    def publish(self) -> None:
        """Write this rank's weights for peers to read, drop the gradients, and wait until every rank has done so."""
        self.renew(keep=False)

    def renew(self, *, keep: bool) -> None:
        """Publish. `keep`: leave `.grad` as it is."""
        self._loop.refuse_closed()
        with self._in_step():
            self._gathers.drain()
            # Without settle() all drop this minibatch: nobody can evaluate with old weights any more.
            self._meet(Reason.PUBLISHES if self.settled or self.size == 1 else Reason.DROPS, keep=keep)

    def take(self) -> int:
        self._loop.refuse_closed()
        self.replicas.refuse_queue()
        if self.meets or self.settled:
            return super().take()
        return self.memory.take()

    def retry(
        self,
        loss: Callable[[Batch], Tensor],
        batch: Batch,
        halve: Callable[[Batch], tuple[Batch, Batch]] = halved,
    ) -> Tensor:
        self._loop.refuse_closed()
        if self.meets:
            return super().retry(loss, batch, halve)
        self.replicas.refuse_retry()
        return self._retry.run(loss, batch, halve) if self.size > 1 else backward(loss(batch))

    def close(self) -> None:
        """Stop the lanes, free the memory and restore stock communication. The model can then be given to another.

        It waits until all ranks close, since some may still gather from this one. An exception on its way does not.
        """
        try:
            if self._loop.phase is not Phase.CLOSED and sys.exc_info()[0] is None:
                self._meet(Reason.CLOSES)
        finally:
            self._opened.close()


class _Plug:
    """Replaces FSDP2's all-gather or reduce-scatter of a unit, which first asks for memory."""

    def __init__(self, odc: OnDemand, unit: Unit) -> None:
        self.odc, self.unit = odc, unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        with torch.inference_mode(False):  # a lane may not write to what is allocated inside it, nor training later
            return torch.empty(size, dtype=dtype, device=device)


class Gather(_Plug):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if group.size() != self.odc.size:
            raise InputError(
                f"unit {self.unit.name} gathers among {group.size()} of {self.odc.size} devices",
                fix="use reshard_after_forward True or False",
            )
        del async_op  # FSDP2 waits for whatever it is given in any case
        return self.odc.gather(self.unit, input_tensor, output_tensor).awaited


class Push(_Plug):
    """FSDP2's own output stays unused."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *_: object, **__: object) -> None:  # noqa: ARG002
        self.odc.push(self.unit, input_tensor)
