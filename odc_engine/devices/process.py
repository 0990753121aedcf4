"""A device that is a process: its share of every minibatch under FSDP2, recorded."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from odc_engine.backends.backend import Processes
from odc_engine.backends.base import MAIN, Collectives, Host
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.decoder.model import Decoder
from odc_engine.devices import clocks
from odc_engine.devices.run_device import Recorded, RunDevice, idle_step
from odc_engine.devices.workload import Workload, workload_of
from odc_engine.fsdp.collective import Collective, all_gather
from odc_engine.fsdp.communication import Communication
from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.fsdp.sharding import shard
from odc_engine.job import Job
from odc_engine.record import MinibatchRecorder
from odcsim.program import Sync, prefetch_named, sync_named
from odcsim.schedule import Schedule


class ProcessDevice(RunDevice):
    """A rank that is a process: a model sharded by FSDP2, whose communication is replaced, and an optimizer."""

    def __init__(self, job: Job, rank: int, memory: Host | None = None) -> None:
        self.job, self.rank = job, rank
        host = memory or SharedMemory(timeout=job.timeout)
        assert isinstance(job.backend, Processes)
        self.memory = job.backend.memory(host)
        self._later = 0.0 if host.one_clock else clocks.offset()
        self.clock = self.memory.place.clock()
        self.sync: Sync = sync_named(job.recipe.sync)
        self.model = Decoder(job.cost.model, recompute=job.recipe.recomputes, seed=job.seed).to(self.memory.device)
        self.model.pause_by(self.memory.place.wait, zeros=True)
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if job.recipe.dtype == "bfloat16" else None
        ahead = prefetch_named(job.recipe.prefetch)
        shard(
            self.model,
            list(self.model.layers),
            ahead,
            precision=precision,
            mesh=self._mesh(),
            reshard=job.recipe.reshard,
        )
        self.recorder = _Switch()
        self.comm = self._communication()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def _mesh(self) -> DeviceMesh:
        """Return the mesh. torch's default would be of GPUs wherever there is one."""
        if isinstance(self.memory, Collectives):
            return self.memory.mesh
        return init_device_mesh(self.memory.device.type, (self.memory.size,))

    def _communication(self) -> Communication:
        if isinstance(self.memory, Collectives):
            registered = self.job.recipe.copies == "engines"
            how: Any = {"finish": self.memory.finish, "registered": registered}
            return Collective(self.model, recorder=self.recorder, **how)
        return OnDemand(
            self.model,
            memory=self.memory,
            accumulate=self.job.recipe.accumulate,
            meets=self.sync.meets,
            average=False,
            trail=prefetch_named(self.job.recipe.prefetch).trail,
            devices_per_node=self.job.cost.holders,
            far=self.job.recipe.far,
            recorder=self.recorder,
        )

    def minibatch(self, number: int) -> Recorded:
        schedule = self.job.schedules[number]
        recorder = MinibatchRecorder(self.job.program_of(schedule), self.clock)
        share = self._share(schedule, number)
        self.meet()
        self.recorder.now, self.model.listener = recorder, recorder
        start = self.clock.start()
        self._sum_gradients(share, recorder)
        self._step(recorder)
        self.recorder.now = None
        return Recorded(start + self._later, *recorder.times(start), tuple(share.taken))

    def gradients(self, schedule: Schedule) -> None:
        self._sum_gradients(self._share(schedule, None), None)

    def warm_up(self, schedule: Schedule) -> None:
        self.gradients(schedule)
        idle_step(self.optimizer)
        self.publish()

    def _share(self, schedule: Schedule, number: int | None) -> Workload:
        return workload_of(self.job, schedule, self.rank, self.comm.take, number, self.memory.device)

    def _sum_gradients(self, share: Workload, recorder: MinibatchRecorder | None) -> None:
        for m, microbatch in enumerate(share):
            if recorder is not None:
                recorder.open_microbatch(m)
            self._set_sync(last=m == len(share.own) - 1)
            seconds = microbatch.seconds
            self.model.emulate = None if seconds is None else lambda phase, _unit, waits=seconds: waits[phase]
            self.model(microbatch.batch).backward()
            self.comm.drain()  # the root's push is waited for, as FSDP2 does
        self.comm.settle()

    def _set_sync(self, *, last: bool) -> None:
        if not self.sync.push_every_microbatch and isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)

    def _step(self, recorder: MinibatchRecorder) -> None:
        with recorder.span("optimizer"):
            self.optimizer.step()
        self.optimizer.zero_grad()
        if not self.sync.publishes and self.job.cost.sharded == "full":
            # Collectives read shards where they are. Over shared memory they are laid out like on-demand's, but nobody
            # charges them for it: the comparison leans to the rival's side.
            self.recorder.now = None
        self.comm.publish()

    def meet(self) -> None:
        self.memory.meet(MAIN)

    def whole_gradients(self) -> dict[str, Tensor]:
        return whole_gradients(self.model)

    def publish(self) -> None:
        self.optimizer.zero_grad()  # communication drops them too, but one device alone has none
        self.comm.publish()

    def gathered(self, recorded: Recorded) -> list[Recorded] | None:
        every: list[Recorded] | None = [recorded] * dist.get_world_size() if self.rank == 0 else None
        self.meet()  # it can name who does not come
        dist.gather_object(recorded, every)
        return every

    def close(self) -> None:
        self.comm.close()
        self.memory.close()


class _Switch:
    """Passes events on to the recorder of the current minibatch, if any."""

    def __init__(self) -> None:
        self.now: MinibatchRecorder | None = None

    @property
    def microbatch(self) -> int:
        return self.now.microbatch if self.now else 0

    def tick(self) -> float:
        return self.now.tick() if self.now else 0.0

    def given(self, kind: str, unit: int) -> int:
        return self.now.given(kind, unit) if self.now else -1

    def done(self, number: int, asked: float, had: float) -> None:
        if self.now:
            self.now.done(number, asked, had)

    def span(self, kind: str) -> AbstractContextManager[None]:
        return self.now.span(kind) if self.now else nullcontext()


def whole_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter's gradient, gathered from all ranks; zeros if no rank used it."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        whole = _whole(gradient) if isinstance(gradient, DTensor) else gradient
        found[name] = torch.zeros(parameter.shape) if whole is None else whole.cpu()
    return found


def _whole(gradient: DTensor) -> Tensor:
    """From processor to processor: over whatever a model's own group is, several processes may share a GPU."""
    rows, devices = gradient.shape[0], dist.get_world_size()
    local = gradient.to_local().cpu()
    mine = local.new_zeros(-(-rows // devices), *gradient.shape[1:])
    mine[: len(local)] = local
    every = local.new_empty(devices * len(mine), *gradient.shape[1:])
    all_gather(every, mine)
    return every[:rows]
