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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from odc_engine.backends.base import MAIN, PeerMemory
from odc_engine.backends.patience import hinting
from odc_engine.fsdp import agreement, reached_parameters
from odc_engine.fsdp.communication import Batch, Communication
from odc_engine.fsdp.graph_breaks import uncompiled
from odc_engine.fsdp.groups import devices_of, groups_of, stock_afterwards
from odc_engine.fsdp.guards.every import Guards
from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.missing_gradients import pack_zeros, spread
from odc_engine.fsdp.optimizers.attachment import Attachment
from odc_engine.fsdp.optimizers.steps import Steps
from odc_engine.fsdp.pending_gradients import drop_gradients
from odc_engine.fsdp.phase import Phase
from odc_engine.fsdp.plugs import Gather, Push
from odc_engine.fsdp.precision import check_precision
from odc_engine.fsdp.remedies import BY_HAND, Remedies
from odc_engine.fsdp.replicas import Replicas, agreed_by_all
from odc_engine.fsdp.retry.halving import halved
from odc_engine.fsdp.retry.retry import Retry, alone
from odc_engine.fsdp.scaling import scale
from odc_engine.fsdp.transfers import Transfers, is_hierarchical
from odc_engine.fsdp.units import Unit, pack, set_grads, sharded_groups, units_of
from odc_engine.fsdp.usual_timeout import usual_timeout
from odc_engine.fsdp.versions import equal, no_rate, packed
from odc_engine.memory.arena import Arena
from odc_engine.memory.arenas import arena_on, memory_for
from odc_engine.places.lanes import Handle
from odc_engine.record import Recorder, Silence
from odcsim.errors import InputError, nearest
from odcsim.recipe import ACCUMULATE

NO_FLAGS = torch.zeros(0, dtype=torch.uint8, device="cpu")


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
        if accumulate is not None and accumulate not in ACCUMULATE:
            raise InputError(f"unknown accumulate mode '{accumulate}'", fix=nearest(accumulate, list(ACCUMULATE)))
        with ExitStack() as opened:
            patience = usual_timeout(model) if timeout is None else timeout
            if memory is None:
                make = partial(memory_for, model, patience, devices_of(model))
                self.memory = agreed_by_all(groups_of(model), opened, make)
            else:
                self.memory = opened.enter_context(memory)
            self.model, self.rank, self.size = model, self.memory.rank, self.memory.size
            self.meets, self.recorder = meets, recorder or Silence()
            groups = sharded_groups(model) if self.size > 1 else []
            opened.enter_context(stock_afterwards(groups))
            check_precision(groups)
            self.replicas = Replicas(groups, next(model.parameters()).device, self.memory.timeout)
            opened.enter_context(self.replicas)
            self.scales = [scale(group, self.size * self.replicas.count, average=average) for group in groups]
            self.units = units_of(groups)
            shapes = [unit.shape for unit in self.units]
            self.memory.meet(MAIN)  # it names who could not come so far, for whom a collective would wait
            arena = arena_on(self.memory, shapes, accumulate, devices_per_node)
            self._hierarchical = is_hierarchical(far, meets, devices_per_node) and arena.nodes > 1
            how: Any = {"meets": meets, "trail": trail, "check_finite": check_finite}
            self._transfers = Transfers(arena, self.recorder, hierarchical=self._hierarchical, **how)
            opened.callback(self._transfers.close)
            way_out = "" if memory else BY_HAND.finite  # who brings the memory is no loop of a user's
            self._loop = loop = Loop(model, self.units, self._published, way_out=way_out)
            opened.callback(loop.close)
            opened.callback(reached_parameters.watch(self.units, lambda: loop.minibatch.reached))
            self._steps = Steps(loop, self._before_step, self._after_step)
            opened.callback(self._steps.close)
            for unit in self.units:
                self._plug(unit, opened)
            self._guards, self._retry = Guards(loop), Retry(loop)
            self._attachment = Attachment(loop, self)
            opened.callback(self._attachment.close)
            hook = uncompiled(lambda *_: self._before_pass())
            opened.callback(model.register_forward_pre_hook(hook, prepend=True).remove)
            vars(self).update({each.__name__: uncompiled(each) for each in (self.meet_to_settle, self.renew)})
            self.replicas.begin()
            self.publish()
            self._opened = opened.pop_all()

    @property
    def arena(self) -> Arena:
        return self._transfers.arena

    @property
    def settled(self) -> bool:
        return self._loop.phase is Phase.SETTLED

    def speak(self, remedies: Remedies) -> None:
        """Use other words for the fixes that error messages name."""
        self._loop.speak(remedies)

    def _published(self, unit: Unit) -> Tensor:
        return self.arena.weights(self.rank, unit.index)

    def _plug(self, unit: Unit, opened: ExitStack) -> None:
        unit.fsdp.set_custom_all_gather(cast(Any, Gather(self, unit)))
        unit.fsdp.set_custom_reduce_scatter(cast(Any, Push(self, unit)))
        unit.fsdp.set_force_sum_reduction_for_comms(True)
        unit.fsdp.set_gradient_divide_factor(1.0)
        opened.callback(pack_zeros(unit, meets=self.meets))
        if unit.group.replicas is not None:
            opened.callback(unit.group.keep_from_replicas())
        opened.callback(unit.group.before_use(lambda: self._before_use(unit)))

    def _before_pass(self) -> None:
        """Run the guards before a forward of the whole model."""
        self._guards.ask(lambda guard: guard.before_pass())
        self._loop.minibatch.given.microbatches.begin()

    def _before_use(self, unit: Unit) -> None:
        """Run the guards when FSDP2 needs a unit whole. A unit that is still whole from an earlier pass is not
        gathered again."""
        minibatch = self._loop.minibatch
        minibatch.use(unit)
        if unit.phase == "backward":
            self._guards.ask(lambda guard: guard.before_backward(unit))
        else:
            self._guards.ask(lambda guard: guard.before_forward(unit))
            minibatch.forward(unit)
        self._retry.use(unit)

    def attach(self, *optimizers: Optimizer) -> None:
        """Make steps of these optimizers settle before (if nobody has) and publish after the last of them.

        Reading a gradient before the step, for example to clip it, settles. Loading into the model publishes. `.grad`
        stays until zero_grad().
        """
        self._loop.refuse_closed()
        if self.size > 1:
            self._attachment.attach(optimizers)

    def _before_step(self, optimizer: Optimizer, closure: object) -> None:
        attached = self._attachment.before_step(optimizer, closure)
        if not attached and not self.settled and self._loop.minibatch.pushes:
            fix = self._loop.remedies.step
            raise InputError("optimizer.step() before gradients are summed", fix=fix)

    def _after_step(self, optimizer: Optimizer) -> None:
        """Publish after the last optimizer's step.

        torch.distributed.checkpoint makes an optimizer without state step with zero gradients at learning rate 0: then
        the weights remain as published.
        """
        empty = not self.settled and no_rate(optimizer)
        unchanged = empty and all(equal(packed(unit, own := self._published(unit)), own) for unit in self.units)
        self._loop.minibatch.versions.step(optimizer, unchanged=unchanged)
        self._attachment.after_step(optimizer, empty=empty)

    def settle(self) -> None:
        self._loop.refuse_closed()
        if self.size > 1 and not (self.settled and self._loop.minibatch.looked):
            self.meet_to_settle(by_a_look=False)

    def meet_to_settle(self, *, by_a_look: bool) -> None:
        self._loop.refuse_closed()
        if self.settled:
            raise InputError("settle() twice for one minibatch", fix=self._loop.remedies.again)
        with self._in_step():
            self._settle(by_a_look)

    def _settle(self, by_a_look: bool) -> None:
        arena, minibatch = self.arena, self._loop.minibatch
        self._drop_cleared()
        problem = self._loop.why or next(self._guards.say(lambda guard: guard.before_settle()), None)
        if problem is None:
            self._loop.mend()
        comes_for = agreement.LOOKS if by_a_look else agreement.SETTLES
        whole = any(unit.trainable and unit.group.is_whole for unit in self.units)
        says: Any = {"steps": minibatch.versions.steps, "pushed": minibatch.pushes > 0, "whole": whole}
        words, flags = self._agree(agreement.word(comes_for, problem, **says), minibatch.reached.flags())
        if by_a_look and not agreement.any_pushed(words):
            arena.meet()  # all ranks have read it, before anyone writes the next word
            return
        self._loop.enter(Phase.SETTLED)
        if arena.offer_sums():
            arena.meet()
        self._transfers.between_nodes("push", arena.sum_nodes)
        anybody = iter(self.replicas.every(flags).amax(dim=0).tolist())
        for unit in self.units:
            used = [next(anybody) for _ in unit.trainable]
            total = self.replicas.sum(arena.gradients(unit.index))
            set_grads(unit, total, used, self.scales[unit.index])
            unit.fsdp.reshard()  # else a rank that only evaluated shows whole parameters, without gradients
        minibatch.pending.arrive()

    def _drop_cleared(self) -> None:
        """Drop what zero_grad() has cleared inside a minibatch, on all ranks, before other gradients come."""
        minibatch = self._loop.minibatch
        minibatch.note_cleared()  # by zero_grad() of the model
        if minibatch.cleared and self._loop.phase is Phase.OPEN:
            self._agree(agreement.word(agreement.CLEARS), NO_FLAGS)
            for unit in self.units:
                self.arena.clear(unit.index)
            self.arena.meet()  # nobody adds to a sum that its owner has not cleared
            minibatch.drop()

    def _agree(self, word: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
        """Meet once all that this rank has pushed has arrived. If ranks come for different reasons, all raise the same
        and are still in step. Returns the words of all ranks, those of replicas too, and the flags of all."""
        self._transfers.finish_pushes(self._loop.minibatch.given)
        mine = torch.cat([word, flags])
        self.arena.notes(self.rank, len(mine)).copy_(mine)
        with self.recorder.span("meeting"), hinting(self._loop.remedies.collective):
            self.arena.meet()
        every = self.arena.every_note(len(mine))
        words = self.replicas.every(every[:, : agreement.SIZE])
        try:
            agreement.agree(words, self._loop.remedies.together)
        except InputError as error:
            why = self._loop.why or error  # settle() again raises the same
            self._loop.enter(Phase.BROKEN, why)
            self.arena.meet()  # all ranks have read it, before anyone writes the next word
            raise why from None
        return words, every[:, agreement.SIZE :]

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

    def take(self) -> int:
        self._loop.refuse_closed()
        self.replicas.refuse_queue()
        if self.meets or self.settled:
            return super().take()
        return self.arena.memory.take()

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
        return self._retry.run(loss, batch, halve) if self.size > 1 else alone(loss, batch)

    def publish(self) -> None:
        """Write this rank's weights for peers to read, drop the gradients, and wait until every rank has done so."""
        self.renew(keep=False)

    def renew(self, *, keep: bool) -> None:
        """Publish. `keep`: leave `.grad` as it is."""
        self._loop.refuse_closed()
        with self._in_step():
            self._renew(keep)

    def _renew(self, keep: bool) -> None:
        arena, loop = self.arena, self._loop
        self._transfers.finish_gathers()
        if not self.settled and self.size > 1:  # all drop this minibatch: nobody can evaluate with old weights any more
            self._agree(agreement.word(agreement.DROPS), NO_FLAGS)
        loop.end()
        if self.rank == 0:
            self.memory.refill()  # all ranks have passed the last synchronization, and take() waits for the one below
        with self.recorder.span("publish"):
            for unit in self.units:
                self._publish(unit, keep)
            loop.begin()
            self._guards.begin()
        if self.size > 1:
            self._meet_to_publish(arena)
        loop.enter(Phase.OPEN)

    def _meet_to_publish(self, arena: Arena) -> None:
        if arena.nodes > 1 and not self.meets and not self._hierarchical:
            with self.recorder.span("meeting"):
                self.memory.meet(MAIN)  # all shards are written, and all sums read
        if not self._hierarchical:
            self._transfers.between_nodes("gather", arena.fetch)
        with self.recorder.span("meeting"):
            self.memory.meet(MAIN)
        self._transfers.begin()
        if isinstance(self.recorder, Silence):  # else the first gather records it, in the next minibatch
            self._transfers.bring()

    def _publish(self, unit: Unit, keep: bool) -> None:
        unit.group.finish_gather()
        unit.fsdp.reshard()  # a whole copy that outlived the minibatch holds the old weights
        pack(unit, self._published(unit))
        drop_gradients(unit, keep)
        increment_version([piece.managed.whole for piece in unit.pieces])  # backward over the former ones fails
        if self.arena.nodes == 1:  # else other nodes may still read the sums
            self.arena.clear(unit.index)

    def gather(self, unit: Unit, mine: Tensor, out: Tensor) -> Handle:
        self._guards.ask(lambda guard: guard.before_gather(unit, mine))
        return self._transfers.gather(unit, out)

    def push(self, unit: Unit, gradients: Tensor) -> None:
        self._guards.ask(lambda guard: guard.before_push(unit))
        with self._in_step():
            self._drop_cleared()
        minibatch = self._loop.minibatch
        gradients = spread(unit, gradients, minibatch.reached.collect(unit.index), self.size)
        minibatch.push(unit, attached=self._loop.look is not None)
        if not self._retry.mutes(unit):
            self._transfers.push(unit, gradients, minibatch.given)

    def drain(self) -> None:
        self._transfers.wait_for_all()

    def close(self) -> None:
        """Stop the lanes, free the memory and restore stock communication. The model can then be given to another.

        It waits until all ranks close, since some may still gather from this one. An exception on its way does not.
        """
        try:
            if self._loop.phase is not Phase.CLOSED and sys.exc_info()[0] is None:
                self.memory.leave()
        finally:
            self._opened.close()
