"""On-demand communication for a model sharded by FSDP2, through its public hooks.

    fully_shard(...)                          # as always
    odc = OnDemand(model)
    for minibatch in data:
        for batch in my_share(minibatch):     # as many microbatches as this device likes, or none
            loss(model, batch).backward()
        odc.settle()                          # meeting: every push has arrived, .grad holds the sum over all devices
        optimizer.step()
        optimizer.zero_grad()
        odc.publish()                         # meeting: the new weights are there for everybody

After `odc.attach(optimizer)` its steps settle and publish by themselves (optimizers/attachment.py).

Gathers pull peers' shards, pushes add to the owner's sum; neither needs the peer to do anything. Gradients are sums,
not means: weigh losses by the whole minibatch (odc_engine.packed.token_mean).
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from odc_engine.backends.base import MAIN, PeerMemory
from odc_engine.backends.patience import LIMIT, hinting
from odc_engine.fsdp import agreement
from odc_engine.fsdp.communication import Batch, Communication
from odc_engine.fsdp.graph_breaks import uncompiled
from odc_engine.fsdp.groups import devices_of, stock_afterwards
from odc_engine.fsdp.guards.published_weights import Fresh
from odc_engine.fsdp.minibatch import Minibatch, drop_gradients
from odc_engine.fsdp.missing_gradients import pack_zeros, spread
from odc_engine.fsdp.optimizers.attachment import Attached
from odc_engine.fsdp.optimizers.steps import Steps
from odc_engine.fsdp.plugs import Gather, Push
from odc_engine.fsdp.reached_parameters import Used
from odc_engine.fsdp.remedies import ATTACHED, Ways
from odc_engine.fsdp.replicas import Replicas
from odc_engine.fsdp.retry.halving import halved
from odc_engine.fsdp.retry.retry import Retried, backward
from odc_engine.fsdp.scaling import scale
from odc_engine.fsdp.transfers import Transfers, comes_ahead
from odc_engine.fsdp.units import Unit, pack, set_grads, sharded_groups, units_of
from odc_engine.memory.arena import Arena
from odc_engine.memory.arenas import arena_on, memory_for
from odc_engine.places.lanes import Handle
from odc_engine.record import Recorder, Silence
from odcsim.errors import InputError, nearest
from odcsim.recipe import ACCUMULATE

SKIPS = "OnDemand(check_finite=False) leaves it to who skips such steps, as scalers do"


class OnDemand(Communication):
    """Replaces a sharded model's all-gathers and reduce-scatters. Every device makes one, at the same time.

    `meets` turns every transfer into a meeting of all devices, one lane for both: FSDP's collectives over the same
    memory, as the rival to compare with. `average`: gradients are means over devices, as stock FSDP2 gives them, not
    sums. `trail`: a compute waits for the push that many positions back, since that one still holds a buffer (FSDP2 has
    2; 1 waits for every push at once). `devices_per_node`, for hybrid sharding: so many consecutive devices hold all
    weights and sums of gradients, gathers and pushes stay among them, and nodes exchange both once per minibatch. FSDP2
    shards the model over all devices in any case. `far="hierarchical"`: new weights come into a node unit by unit from
    the moment they are published, each device bringing its part, instead of all at once while everybody waits.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: PeerMemory | None = None,
        accumulate: str = "locked",
        timeout: float = LIMIT,
        meets: bool = False,
        check_finite: bool = True,
        average: bool = False,
        trail: int = 2,
        devices_per_node: int | None = None,
        far: str = "each",
        recorder: Recorder | None = None,
    ) -> None:
        if accumulate not in ACCUMULATE:
            raise InputError(f"unknown accumulate mode '{accumulate}'", fix=nearest(accumulate, list(ACCUMULATE)))
        with ExitStack() as opened:
            self.memory = memory or memory_for(model, timeout, devices_of(model))
            opened.callback(self.memory.close)
            self.model, self.rank, self.size = model, self.memory.rank, self.memory.size
            self.meets, self.recorder = meets, recorder or Silence()
            groups = sharded_groups(model) if self.size > 1 else []
            opened.enter_context(stock_afterwards(groups))
            self.replicas = Replicas(groups, next(model.parameters()).device)
            self.scales = [scale(group, self.size * self.replicas.count, average=average) for group in groups]
            self.units = units_of(groups)
            shapes = [unit.shape for unit in self.units]
            arena = arena_on(self.memory, shapes, accumulate, devices_per_node)
            self._ahead = comes_ahead(far, meets, devices_per_node) and arena.nodes > 1
            how: Any = {"meets": meets, "trail": trail, "check_finite": check_finite, "ahead": self._ahead}
            how["way_out"] = "" if memory else SKIPS  # who brings the memory is no loop of a user's
            self._transfers = Transfers(model, arena, self.recorder, **how)
            opened.callback(self._transfers.close)
            self.settled = True  # nothing is gathered or pushed from here to the meeting in publish()
            self._broken: InputError | None = None  # why all devices have to drop this minibatch
            self.ways = Ways()
            self._used, self._fresh = Used(self.units), Fresh(self.units, self.ways)
            opened.callback(self._used.close)
            self._steps = Steps(self.units, self._before_step, self._after_step, self.ways)
            opened.callback(self._steps.close)
            for unit in self.units:
                self._plug(unit, opened)
            self._minibatch = Minibatch(model, self.units, self.ways)
            opened.callback(self._minibatch.close)
            self._retried = Retried(model, self.units, self._minibatch, self._transfers, self._used)
            self._attached = Attached(model, self.units, self._minibatch, self)
            opened.callback(self._attached.close)
            hook = uncompiled(lambda *_: self._minibatch.begin())
            opened.callback(model.register_forward_pre_hook(hook, prepend=True).remove)
            vars(self).update({each.__name__: uncompiled(each) for each in (self.meet_to_settle, self.renew)})
            self.publish()
            self._opened = opened.pop_all()

    @property
    def arena(self) -> Arena:
        return self._transfers.arena

    def _plug(self, unit: Unit, opened: ExitStack) -> None:
        unit.fsdp.set_custom_all_gather(cast(Any, Gather(self, unit)))
        unit.fsdp.set_custom_reduce_scatter(cast(Any, Push(self, unit)))
        unit.fsdp.set_force_sum_reduction_for_comms(True)
        unit.fsdp.set_gradient_divide_factor(1.0)
        opened.callback(pack_zeros(unit, meets=self.meets))
        if unit.group.replicas is not None:
            opened.callback(unit.group.keep_from_replicas())
        opened.callback(unit.group.before_use(lambda: self._before_use(unit)))

    def _before_use(self, unit: Unit) -> None:
        """FSDP2 wants a unit whole. What is so already, from an earlier pass, is not gathered again."""
        if self._broken:
            raise self._broken
        self._fresh.check(unit)
        if self.settled:
            raise InputError(
                f"{unit.phase} of {unit.name} between settle() and publish(), when peers may change their weights",
                fix=self.ways.now.backward if unit.phase == "backward" else self.ways.now.evaluate,
            )
        if unit.group.is_whole and unit.group.phase == "FORWARD":
            self._fresh.compare_shard(unit, self.arena.weights(self.rank, unit.index))
        self._minibatch.use(unit)
        self._retried.use(unit)

    def attach(self, *optimizers: Optimizer) -> None:
        """From now on their steps settle before, where nobody has, and publish after the last of them. Who looks at
        gradients first, to clip them, settles. Loading into the model publishes. `.grad` stays until zero_grad()."""
        if self.size > 1:
            self._attached.attach(optimizers)
            self.ways.now = ATTACHED

    def _before_step(self, optimizer: Optimizer, closure: object) -> None:
        attached = self._attached.before_step(optimizer, closure)
        if not attached and not self.settled and self._minibatch.pushed:
            raise InputError("a step with gradients that are on their way to their owners", fix=self.ways.now.step)

    def _after_step(self, optimizer: Optimizer) -> None:
        empty = self._fresh.step(optimizer, lambda unit: self.arena.weights(self.rank, unit), settled=self.settled)
        self._attached.after_step(optimizer, empty=empty)

    def settle(self) -> None:
        if self.size > 1 and not (self.settled and self._attached.looked):
            self.meet_to_settle(by_a_look=False)

    def meet_to_settle(self, *, by_a_look: bool) -> None:
        arena = self.arena
        if self.settled:
            raise InputError("settle() twice for one minibatch", fix=self.ways.now.again)
        comes_for = agreement.LOOKS if by_a_look else agreement.SETTLES
        word = agreement.word(comes_for, self._broken or self._problem(), steps=self._fresh.steps)
        self._transfers.finish_pushes()
        mine = torch.cat([word, self._used.flags()])
        arena.notes(self.rank, len(mine)).copy_(mine)
        with self.recorder.span("meeting"), hinting(self.ways.now.collective):
            arena.meet()
        every = arena.every_note(len(mine))
        self._agree(every)
        self.settled = True
        self._transfers.between_nodes("push", arena.sum_nodes)
        anybody = iter(self.replicas.every(every[:, len(word) :]).amax(dim=0).tolist())
        for unit in self.units:
            used = [next(anybody) for _ in unit.trainable]
            total = self.replicas.sum(arena.gradients(unit.index))
            set_grads(unit, total, used, self.scales[unit.index])
            unit.fsdp.reshard()  # else model.parameters() are whole ones, without gradients, on who only evaluated
        self._minibatch.arrive()

    def _problem(self) -> InputError | None:
        """Why `.grad` would not be what it is taken for."""
        try:
            self._fresh.look()
        except InputError as error:
            return error
        return self._retried.broken or self._minibatch.problem()

    def _agree(self, words: Tensor) -> None:
        try:
            agreement.agree(self.replicas.every(words[:, : agreement.SIZE]), self.ways.now.together)
        except InputError as error:
            self._broken = error
            self.memory.meet(MAIN)  # all have read it, before anybody says the next thing
            raise

    def _drop(self) -> None:
        """All devices leave what they have of this minibatch, and nobody evaluates with old weights any more."""
        self._transfers.finish_pushes()  # a late one would add to a sum that its owner has cleared already
        word = agreement.word(agreement.DROPS)
        self.arena.notes(self.rank, len(word)).copy_(word)
        self.memory.meet(MAIN)
        self._agree(self.arena.every_note(len(word)))

    def take(self) -> int:
        self.replicas.refuse_queue()
        if self.meets or (self.settled and self.size > 1):
            return super().take()
        return self.arena.memory.take()

    def retry(
        self,
        loss: Callable[[Batch], Tensor],
        batch: Batch,
        halve: Callable[[Batch], tuple[Batch, Batch]] = halved,
    ) -> Tensor:
        if self.meets:
            return super().retry(loss, batch, halve)
        self.replicas.refuse_retry()
        if self.size == 1:  # its gradients are in `.grad` before anybody could mute them
            return backward(loss(batch))
        return self._retried.run(loss, batch, halve)

    def publish(self) -> None:
        """Lay this device's weights out for peers, drop the gradients, and meet when everybody has."""
        self.renew(keep=False)

    def renew(self, *, keep: bool) -> None:
        """`keep`: `.grad` stays what it is."""
        arena = self.arena
        if self.size == 1:
            self.memory.refill()
            return
        self._transfers.finish_gathers()
        if not self.settled:
            self._drop()
        self._minibatch.clear()
        if self.rank == 0:
            self.memory.refill()  # all have come to the meeting before, and nobody takes until the one below
        with self.recorder.span("publish"):
            for unit in self.units:
                self._publish(unit, keep)
            self._fresh.note()
            self._steps.note()
            self._used.clear()
            self._attached.forget()
            self._retried.clear()
        if arena.nodes > 1 and not self.meets and not self._ahead:
            with self.recorder.span("meeting"):
                self.memory.meet(MAIN)  # all shards are laid out, and all sums read
        if not self._ahead:
            self._transfers.between_nodes("gather", arena.fetch)
        with self.recorder.span("meeting"):
            self.memory.meet(MAIN)
        self._transfers.begin()
        if isinstance(self.recorder, Silence):  # else it is recorded as of the next minibatch, with the first gather
            self._transfers.bring()
        self.settled, self._broken = False, None

    def _publish(self, unit: Unit, keep: bool) -> None:
        unit.group.finish_gather()
        unit.fsdp.reshard()  # a whole copy that outlived the minibatch holds the old weights
        pack(unit, self.arena.weights(self.rank, unit.index))
        drop_gradients(unit, keep)
        if self.arena.nodes == 1:  # else other nodes may still read the sums
            self.arena.clear(unit.index)

    def gather(self, unit: Unit, mine: Tensor, out: Tensor) -> Handle:
        self._fresh.compare(unit, mine, self.arena.weights(self.rank, unit.index))
        return self._transfers.gather(unit, out)

    def push(self, unit: Unit, gradients: Tensor) -> None:
        if self.settled:
            raise InputError(f"backward of {unit.name} after settle()", fix=self.ways.now.backward)
        reached = self._used.reached(unit.index)
        gradients = spread(unit, gradients, reached, self.size)
        self._minibatch.push(unit, reached=any(reached))
        if not self._retried.mutes(unit):
            self._transfers.push(unit, gradients)

    def drain(self) -> None:
        self._transfers.wait_for_all()

    def close(self) -> None:
        """Stop the lanes, give the memory back, and put stock communication back. The model can be given to another."""
        self._opened.close()
