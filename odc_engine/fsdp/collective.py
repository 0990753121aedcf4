"""The collective baseline: FSDP2's own collectives (gloo or NCCL), set to sum gradients as on-demand does, and
recorded.

It uses another transport than on-demand, so that a difference in time may come from the transport. OnDemand(meets=True)
compares collectives over the same memory.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from odc_engine.fsdp.communication import Communication
from odc_engine.fsdp.inside import stock_afterwards, uncompiled
from odc_engine.fsdp.units import Unit, meshes_of, sharded, units_of
from odc_engine.memory.finite import Checks, Microbatches
from odc_engine.places.streams import StreamLane
from odc_engine.record import Recorder, Silence
from odcsim.errors import InputError


class Collective(Communication):
    """Replaces OnDemand for a backend without one-sided access.

    On a GPU, transfers run on FSDP2's own streams, and only streams wait for them. NCCL runs the transfers of one
    communicator in order, and the recorder uses one lane for them: it notes when each could begin. `finish` returns
    when this rank's streams are done, and raises if a peer is gone.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        recorder: Recorder | None = None,
        finish: Callable[[], None] | None = None,
        registered: bool = False,
    ) -> None:
        self.recorder, self._finish = recorder or Silence(), finish
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._lane, self._finite = StreamLane(next(model.parameters()).device), Checks()
        with ExitStack() as opened:
            found = sharded(model) if self.size > 1 else []
            for each, mesh in zip(found, meshes_of(found), strict=True):
                if mesh.replicas is not None:
                    raise InputError(
                        f"unit {each.name} is replicated, and FSDP2 reduces over replicas inside backward",
                        fix="use OnDemand, or a one-dimensional mesh",
                    )
            opened.enter_context(stock_afterwards(found))
            self.units = units_of(model, found, arenas=False)
            self._begin()
            opened.callback(model.register_forward_pre_hook(lambda *_: self.microbatches.begin()).remove)
            for unit in self.units:
                self._plug(unit, opened, registered)
            self._opened = opened.pop_all()

    def _plug(self, unit: Unit, opened: ExitStack, registered: bool) -> None:
        unit.fsdp.set_force_sum_reduction_for_comms(True)  # before buffers are registered: NCCL has sums alone there
        gathers, reduces = unit.inside.registered() if registered else (None, None)
        unit.fsdp.set_custom_all_gather(cast(Any, _CollectiveGather(self, unit, gathers)))
        unit.fsdp.set_custom_reduce_scatter(cast(Any, _Reduce(self, unit, reduces)))
        unit.fsdp.set_gradient_divide_factor(1.0)
        # Otherwise ranks that use different parameters reduce different sizes, and gloo aborts the process.
        opened.callback(unit.inside.pack_zeros(meets=True))
        for i, piece in enumerate(unit.trainable):
            reach = uncompiled(lambda _, unit=unit.index, i=i: self._used[unit].__setitem__(i, True))
            opened.callback(cast(Any, piece.whole).register_post_accumulate_grad_hook(reach).remove)

    def _begin(self) -> None:
        """Reset the state that is kept per minibatch. `_used`: by unit, which trainable parameters have a gradient."""
        self._used = [[False] * len(unit.trainable) for unit in self.units]
        self.microbatches = Microbatches(len(self.units))

    def drain(self) -> None:
        self._lane.drain()

    def transfer(self, kind: str, unit: Unit, move: Callable[[], None]) -> None:
        """Run a transfer: asynchronously on a GPU, at once on a CPU."""
        number = self.recorder.given(kind, unit.index)

        def recorded() -> None:
            asked = self.recorder.tick()
            move()
            self.recorder.done(number, asked, self.recorder.tick())

        self._lane.give(recorded)

    def check(self, unit: Unit, gradients: Tensor) -> None:
        self._finite.check(gradients, unit.name, self.rank, self.microbatches.of_push(unit.index))

    def settle(self) -> None:
        """Synchronize, and drop the zeros that FSDP2 reduced for parameters that no rank used."""
        self.drain()
        used = torch.tensor([each for flags in self._used for each in flags], dtype=torch.uint8, device="cpu")
        with self.recorder.span("meeting"):
            if self._finish is not None:
                self._finish()
            self._finite.settle()
            dist.all_reduce(used, op=dist.ReduceOp.MAX)
        trainable = [piece for unit in self.units for piece in unit.trainable]
        for piece, by_anybody in zip(trainable, used.tolist(), strict=True):
            if not by_anybody:
                piece.parameter.grad = None

    def publish(self) -> None:
        """Drop the gradients. Nothing else to do: collectives read the shards in place."""
        self._begin()
        for unit in self.units:
            for piece in unit.pieces:
                piece.parameter.grad = None

    def close(self) -> None:
        self._opened.close()


class _Timed:
    """A collective that is timed. `own`: FSDP2's, if it has memory of its own; None: any memory will do."""

    def __init__(self, owner: Collective, unit: Unit, own: Any) -> None:
        self.owner, self.unit, self.own = owner, unit, own

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self.own is not None:
            return cast(Tensor, self.own.allocate(size, dtype=dtype, device=device))
        return torch.empty(size, dtype=dtype, device=device)


class _CollectiveGather(_Timed):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        del async_op  # on a GPU only the stream waits; gloo's own thread would end it out of sight
        by = self.own or all_gather
        self.owner.transfer("gather", self.unit, lambda: by(output_tensor, input_tensor, group=group))


class _Reduce(_Timed):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        del async_op

        def reduce() -> None:
            self.owner.check(self.unit, input_tensor)
            by = self.own or reduce_scatter
            by(output_tensor, input_tensor, op=op, group=group)

        self.owner.transfer("push", self.unit, reduce)


# torch 2.13 renamed both and warns at every use of the old names.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
