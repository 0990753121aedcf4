"""Performs one minibatch's program on one device: compute on the calling thread, transfers in their lanes.

Nothing here knows a sync mode. Steps are done in the program's order, each after those it names, and a step that this
device does not have passes in no time.

On a GPU (streams.StreamPlace) all of this only gives work to streams, long before it is done. So every compute leaves a
mark that transfers wait for on their stream, as compute waits for transfers, and memory that two streams touch is kept
until the one that allocates has come past the other: whole units in place.Buffers, gradients in `_held`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from odc_engine.backends.base import COMM, MAIN
from odc_engine.decoder.attention import layout
from odc_engine.devices.equipment import Equipment, Kept, Pass
from odc_engine.devices.workload import Microbatch, Workload
from odc_engine.memory.finite import Checks
from odc_engine.places.lanes import Handle
from odc_engine.record import MinibatchRecorder
from odcsim.program import COMPUTE, EVERY, NODES, SETTLES, Program, Step, sync_named


class Performance:
    """`perform()` once; then `recorder` holds the times. `update` is the optimizer's step."""

    def __init__(
        self,
        program: Program,
        parts: Equipment,
        share: Workload,
        update: Callable[[], None],
        publish: Callable[[], None],
    ) -> None:
        self.program, self.parts, self.share = program, parts, share
        self.recorder = MinibatchRecorder(program, parts.clock)
        self._checks = Checks()
        self._memory = parts.arena.memory
        self._names = {id(p): name for name, p in parts.model.named_parameters()}  # a tied one has one
        self._handles: dict[int, Handle] = {}
        self._whole: dict[int, Tensor] = {}  # gathered units
        self._empty: dict[int, Tensor] = {}  # without storage until gathered again, since a kept layer is tied to them
        self._sums: dict[int, Tensor] = {}  # gradients to push
        self._held: dict[int, Tensor] = {}  # gradients on their way, by the step that pushes them
        self._each = sync_named(program.sync).push_every_microbatch
        self._do: dict[str, Callable[[int], None]] = {
            "embed": self._embed,
            "forward": self._forward if parts.recipe.recomputes else self._forward_kept,
            "head": self._head,
            "backward": self._backward,
            "embed backward": self._embed_backward,
            SETTLES: lambda _: self._memory.meet(MAIN),
            "meeting": lambda _: self._memory.meet(MAIN),
            "optimizer": lambda _: update(),
            "publish": lambda _: publish(),
        }

    def perform(self, until: str = "") -> None:
        """Perform all steps of this rank, or those before the first of a kind."""
        self._perform(until)
        self._handles.clear()  # a collector of garbage would come late, and marks are used again

    def _perform(self, until: str) -> None:
        steps, share, number = self.program.steps, iter(self.share), 0
        while number < len(steps):
            step = steps[number]
            if number == self.program.end:
                self._complete()
            if step.lane != COMPUTE:
                self._give(number, step)
                number += 1
                continue
            self._follow(step.after)
            if step.kind == until:
                return
            if step.kind == "overhead" and not self._open(number, next(share, None)):
                number = self.program.end  # the microbatches that are left are others'
                continue
            if step.kind != "overhead":
                self._compute(number, step)
            self._handles[number] = self.parts.place.mark()
            number += 1

    def _open(self, number: int, microbatch: Microbatch | None) -> bool:
        """Begin a microbatch, if there is one. The engine has no fixed overhead beside compute."""
        if microbatch is None:
            return False
        self._pass = Pass(microbatch.batch, microbatch.seconds)
        now = self.recorder.tick()
        self.recorder.done(number, now, now)
        return True

    def _follow(self, steps: tuple[int, ...]) -> None:
        """Make compute wait for these transfers, after which their buffers are free."""
        for earlier in steps:
            if earlier in self._handles:
                self._handles.pop(earlier).check()
            self._held.pop(earlier, None)

    def _complete(self) -> None:
        """End the pushes of all microbatches, before ranks synchronize."""
        for lane in self.parts.lanes.values():
            lane.drain()
        self._held.clear()
        self._checks.settle()
        self.parts.arena.complete()

    def _give(self, number: int, step: Step) -> None:
        """Start a transfer, which waits for the steps that it names."""
        after = [self._handles[n] for n in step.after if n in self._handles]
        if step.lane == NODES:
            move: Callable[[], None] = partial(self.parts.arena.bring, step.unit)
        elif step.microbatch == EVERY:
            move = self._exchange(step)
            after.append(self.parts.place.mark())  # shards that it has laid out
        elif step.kind == "gather":
            move, free = self._gather(step.unit)
            after.append(free)
        else:
            move = self._push(number, step)
        self._handles[number] = self.parts.lanes[step.lane].give(lambda: self._transfer(number, step, move), after)

    def _transfer(self, number: int, step: Step, move: Callable[[], None]) -> None:
        asked = self.recorder.tick()
        if step.meets:
            self._memory.meet(COMM)
        move()
        self.recorder.done(number, asked, self.recorder.tick())

    def _exchange(self, step: Step) -> Callable[[], None]:
        """Exchange between nodes, once per minibatch under hybrid sharding."""
        if step.kind == "push":
            return self.parts.arena.sum_nodes
        if not sync_named(self.program.sync).publishes:
            self._do["publish"](step.unit)  # no step of theirs lays new shards out
        return self.parts.arena.fetch

    def _gather(self, unit: int) -> tuple[Callable[[], None], Handle]:
        """Return the gather, and what it waits for before it may overwrite its target."""
        arena, parts = self.parts.arena, self.parts
        shape = arena.units[unit]
        if unit in self._empty:
            out = self._empty.pop(unit)
            out.untyped_storage().resize_(out.nbytes)
            free = parts.place.mark()
        else:
            out, free = parts.buffers.take(parts.place, shape.gather * self._memory.size, shape.dtype)
        self._whole[unit] = out
        return lambda: arena.gather(unit, out), free

    def _release(self, unit: int) -> None:
        """Note that the current compute is the last to read a gathered unit."""
        self.parts.buffers.give(self._whole.pop(unit), self.parts.place.mark())

    def _push(self, number: int, step: Step) -> Callable[[], None]:
        arena, unit, rank = self.parts.arena, step.unit, self._memory.rank
        gradients = self._held[number] = self._sums.pop(unit)
        microbatches = range(step.microbatch if self._each else 0, step.microbatch + 1)

        def add() -> None:
            self._checks.check(gradients, arena.units[unit].name, rank, microbatches)
            arena.push(unit, gradients)

        return add

    def _compute(self, number: int, step: Step) -> None:
        asked = self.recorder.tick()
        what = self.program.durations[step.duration][0]
        if step.kind == "compute" and self._pass.seconds is not None:
            self._emulate(what, step.unit, self._pass.seconds[what])
        else:
            self._do[what](step.unit)
        self.recorder.done(number, asked, self.recorder.tick())

    def _emulate(self, what: str, unit: int, seconds: float) -> None:
        """Wait for the seconds, and set zero gradients."""
        if what in ("backward", "embed backward"):
            self._add(unit, torch.zeros_like(self._whole[unit]))
        self.parts.place.wait(seconds)
        if what.endswith("backward") or (what == "forward" and self.program.reshard):
            self._release(unit)

    def _lent(self, module: nn.Module, unit: int) -> dict[str, Tensor]:
        """Return a module's weights, by the module's own names."""
        views = self.parts.units[unit].views(self._whole[unit])
        return {name: views[self._names[id(p)]] for name, p in module.named_parameters()}

    @torch.no_grad()
    def _embed(self, unit: int) -> None:
        module, now = self.parts.model.embedding, self._pass
        now.activation = functional_call(module, self._lent(module, unit), (now.batch.tokens,))
        now.layout = layout(now.batch.lengths, self.parts.model.shape.head_dim, now.activation)

    def _forward(self, unit: int) -> None:
        module, now = self.parts.module(unit), self._pass
        now.inputs[unit] = now.activation
        with torch.no_grad():
            now.activation = functional_call(module, self._lent(module, unit), (now.activation, now.layout))
        if self.program.reshard:
            self._release(unit)

    def _forward_kept(self, unit: int) -> None:
        """Run forward and keep the graph, which holds the weights; their storage is freed meanwhile, as FSDP2's is."""
        module, now = self.parts.module(unit), self._pass
        read, weights = now.activation.requires_grad_(), _leaves(self._lent(module, unit))
        output = functional_call(module, weights, (read, now.layout))
        now.kept[unit], now.activation = Kept(read, weights, output), output.detach()
        if self.program.reshard:
            self._empty[unit] = self._whole.pop(unit)
            self._empty[unit].untyped_storage().resize_(0)

    def _head(self, unit: int) -> None:
        module, now = self.parts.model.head, self._pass
        read = now.last_activation().requires_grad_()
        [now.gradient], gradients = _derived(module, self._lent(module, unit), (read, now.batch, False), [read], None)
        now.head = self._named(module, gradients)

    def _backward(self, unit: int) -> None:
        module, now = self.parts.module(unit), self._pass
        if unit in now.kept:
            layer = now.kept.pop(unit)
            read = [layer.input, *layer.weights.values()]
            now.gradient, *gradients = torch.autograd.grad(layer.output, read, now.gradient)
        else:
            again = now.inputs.pop(unit).requires_grad_()
            lent = self._lent(module, unit)
            [now.gradient], gradients = _derived(module, lent, (again, now.layout), [again], now.gradient)
        self._release(unit)
        self._add(unit, self.parts.units[unit].flatten(self._named(module, gradients)))

    def _embed_backward(self, unit: int) -> None:
        module, now = self.parts.model.embedding, self._pass
        _, gradients = _derived(module, self._lent(module, unit), (now.batch.tokens,), [], now.gradient)
        self._release(unit)
        every = dict(now.head)
        for name, gradient in self._named(module, gradients).items():
            every[name] = every[name] + gradient if name in every else gradient  # in both where the head is tied
        self._add(unit, self.parts.units[unit].flatten(every))

    def _named(self, module: nn.Module, gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        return {self._names[id(p)]: g for p, g in zip(module.parameters(), gradients, strict=True)}

    def _add(self, unit: int, gradients: Tensor) -> None:
        """Add to the gradients that wait for a push: those of earlier microbatches if only the last one pushes."""
        if not self._each:
            gradients = gradients.float()  # 16 bits are too few to add up in
        self._sums[unit] = self._sums[unit].add_(gradients) if unit in self._sums else gradients


def _leaves(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients are asked for. By `.data`, so that autograd does not count the next gather as a change of them."""
    return {name: weight.data.requires_grad_() for name, weight in weights.items()}


def _derived(
    module: nn.Module, weights: Mapping[str, Tensor], given: tuple[Any, ...], inputs: list[Tensor], slope: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the loss's gradients to inputs and weights, from the gradient of the module's output (none if that is
    the loss)."""
    lent = _leaves(weights)
    output = functional_call(module, lent, given)
    found = list(torch.autograd.grad(output, [*inputs, *lent.values()], slope))
    return found[: len(inputs)], found[len(inputs) :]
