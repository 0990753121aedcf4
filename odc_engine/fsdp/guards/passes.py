"""Forward and backward passes: at the wrong time, left half done, or of a kind that FSDP2's freed weights forbid."""

import torch

from odc_engine.fsdp.groups import in_backward
from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.phase import Phase
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


class BrokenMinibatches(Guard):
    """What all devices have to drop goes on nowhere."""

    def before_forward(self, unit: Unit) -> Refusals:  # noqa: ARG002
        if self.loop.why is not None:
            yield self.loop.why

    before_backward = before_forward


class PassesInOrder(Guard):
    """Backward passes end before settle(), and belong to forward passes over weights that are published now."""

    def before_forward(self, unit: Unit) -> Refusals:
        return self._between(unit, self.loop.remedies.evaluate)

    def before_backward(self, unit: Unit) -> Refusals:
        return self._between(unit, self.loop.remedies.backward)

    def _between(self, unit: Unit, fix: str) -> Refusals:
        if self.loop.phase is Phase.SETTLED:
            problem = f"{unit.phase} of {unit.name} between settle() and publish(), when peers may change their weights"
            yield InputError(problem, fix=fix)

    def before_push(self, unit: Unit) -> Refusals:
        minibatch = self.loop.minibatch
        if self.loop.phase is Phase.SETTLED:
            yield InputError(f"backward of {unit.name} after settle()", fix=self.loop.remedies.backward)
        if minibatch.reached.any_unpushed(unit.index) and unit.index not in minibatch.forwarded:
            problem = f"backward() of a forward pass of {unit.name} that ran in an earlier minibatch"
            yield InputError(problem, fix="finish backward before the optimizer steps")


class UnfinishedPasses(Guard):
    """Reset FSDP2 after a pass that raised before it pushed anything; otherwise refuse, since the sums may have a
    part of it."""

    def before_pass(self) -> Refusals:
        yield from self._interrupted()
        if self.loop.minibatch.in_pass and not in_backward():
            self.loop.mend()

    def before_forward(self, unit: Unit) -> Refusals:  # noqa: ARG002
        return self._interrupted() if torch.is_grad_enabled() else iter(())

    def before_settle(self) -> Refusals:
        if self.loop.minibatch.given_up is not None:
            yield self.loop.minibatch.given_up
        yield from self._interrupted()
        if self.loop.minibatch.in_pass:
            self.loop.mend()  # what it has left whole is not kept back

    def _interrupted(self) -> Refusals:
        if self.loop.minibatch.interrupted:
            problem = "a backward pass was interrupted after some of its gradients were pushed"
            yield InputError(problem, fix=self.loop.remedies.drop)


class SecondDerivatives(Guard):
    """Ask where autograd calls FSDP2's hook before backward: a recomputation of activations enables gradients, too."""

    def before_backward(self, unit: Unit) -> Refusals:
        by_autograd = in_backward() and unit.group.phase == "PRE_BACKWARD"
        if by_autograd and torch.is_grad_enabled() and unit.group.reshards_after_backward:
            problem = f"create_graph=True needs weights of {unit.name}, which FSDP2 frees in backward"
            fix = "fully_shard(reshard_after_forward=False) and set_reshard_after_backward(False)"
            yield InputError(problem, fix=fix)
