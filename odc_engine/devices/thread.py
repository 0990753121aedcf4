"""A device whose peers are threads of the same process: shards, gathers and pushes without FSDP2.

FSDP2 wants a process group per device, and the only one that torch has for threads belongs to its own tests
(torch.testing._internal.distributed.multi_threaded_pg). It works, but it replaces torch.distributed's state for the
whole process by one per thread, of which a device's other threads have none; the thread of device 0 does the copying of
every collective; one that never comes is waited for without end, and one that fails ends the others by sys.exit,
without its name. So the program is performed here literally, with the same model code and the same arena, and tests
hold the result equal to FSDP2's over shm.

Masters are fp32; with `dtype` bfloat16 weights are gathered, computed with and their gradients pushed in that, as under
FSDP2's MixedPrecisionPolicy. Left out, as `run` needs none of it: frozen parameters, models other than Decoder.
"""

import torch
from torch import Tensor, nn

from odc_engine.backends.base import MAIN
from odc_engine.backends.threads.memory import ThreadMemory
from odc_engine.decoder.model import Decoder
from odc_engine.devices.equipment import Equipment
from odc_engine.devices.flat import FlatUnit, flat_units
from odc_engine.devices.perform import Performance
from odc_engine.devices.run_device import Recorded, RunDevice, drawn, idle_step
from odc_engine.devices.workload import workload_of
from odc_engine.job import Job
from odc_engine.memory.arenas import arena_on
from odcsim.program import NODES, sync_named
from odcsim.schedule import Schedule

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ThreadDevice(RunDevice):
    """A device that is a thread: flat shards, the program performed step by step, and an optimizer.

    A context: whoever leaves it by an error takes the other devices along.
    """

    def __init__(self, job: Job, memory: ThreadMemory) -> None:
        self.job, self.memory, self.rank = job, memory, memory.rank
        self.sync, place = sync_named(job.recipe.sync), memory.place
        model = Decoder(job.cost.model, recompute=False, device="meta")  # Performance computes again what it wants to
        units = flat_units(model, memory.size, DTYPES[job.recipe.dtype])
        arena = arena_on(memory, [unit.shape for unit in units], job.recipe.accumulate, job.cost.holders)
        self.shards = self._drawn(units)
        self.optimizer = torch.optim.AdamW(self.shards, lr=1e-3)
        self._hierarchical = job.recipe.hierarchical
        names = {self.sync.gather_lane, self.sync.push_lane, *([NODES] if self._hierarchical else [])}
        lanes = {name: place.lane(name) for name in names}
        clock = place.clock()
        self.parts = Equipment(
            model=model, units=units, arena=arena, lanes=lanes, place=place, clock=clock, recipe=job.recipe
        )
        self.publish()

    def _drawn(self, units: tuple[FlatUnit, ...]) -> list[nn.Parameter]:
        """Return this rank's parts of the weights, which are drawn once for all."""
        first = drawn(self.job) if self.rank == 0 else None
        whole = dict(self.memory.exchange(first)[0].named_parameters())
        parts = (unit.flatten(whole).detach().chunk(self.memory.size)[self.rank] for unit in units)
        found = [nn.Parameter(part.clone()) for part in parts]
        self.memory.place.finish()  # before the whole goes, which is device 0's memory
        return found

    def minibatch(self, number: int) -> Recorded:
        """Perform every step of a minibatch's program."""
        performance = self._performance(self.job.schedules[number], number)
        self.meet()
        start = self.parts.clock.start()
        performance.perform()
        if self._hierarchical:
            self.parts.arena.begin()
        if not self.sync.publishes and self.parts.arena.nodes == 1:
            self._lay_out()  # as over shm nobody is charged for it
        return Recorded(start, *performance.recorder.times(start), tuple(performance.share.taken))

    def gradients(self, schedule: Schedule) -> None:
        """Leave the sum of gradients over all ranks in `.grad`."""
        self._performance(schedule, None).perform(until="optimizer")
        self._settle(schedule)

    def warm_up(self, schedule: Schedule) -> None:
        self.gradients(schedule)
        idle_step(self.optimizer)
        self.publish()

    def _performance(self, schedule: Schedule, number: int | None) -> Performance:
        def update() -> None:
            self._settle(schedule)
            self.optimizer.step()

        share = workload_of(self.job, schedule, self.rank, self.memory.take, number, self.memory.device)
        return Performance(self.job.program_of(schedule), self.parts, share, update, self._lay_out)

    def _settle(self, schedule: Schedule) -> None:
        """Set `.grad` to what was pushed, or None if no rank computed: AdamW would still decay the weights."""
        computed = any(schedule.contents()) and not self.job.emulate
        for unit, shard in enumerate(self.shards):
            shard.grad = self.parts.arena.gradients(unit) if computed else None

    def publish(self) -> None:
        """Write the weights for peers to read, drop the gradients, and wait until every rank has done so."""
        self._lay_out()
        self.meet()
        if self._hierarchical:
            self.parts.arena.begin()
        elif self.parts.arena.nodes > 1:
            self.parts.arena.fetch()
            self.meet()

    def _lay_out(self) -> None:
        """Write the weights. Only between two synchronizations in which no rank gathers, pushes or takes."""
        if self.rank == 0:
            self.memory.refill()
        for unit, shard in enumerate(self.shards):
            self.parts.arena.weights(self.rank, unit).copy_(shard.detach())
            shard.grad = None
            if self.parts.arena.nodes == 1:  # else other nodes may still read the sums
                self.parts.arena.clear(unit)

    def whole_gradients(self) -> dict[str, Tensor]:
        """Return every parameter's gradient, put together from all ranks; zeros without one."""
        return self._whole([torch.zeros_like(s) if s.grad is None else s.grad for s in self.shards])

    def whole_weights(self) -> dict[str, Tensor]:
        """Return every parameter, put together from all ranks."""
        return self._whole([shard.detach() for shard in self.shards])

    def _whole(self, mine: list[Tensor]) -> dict[str, Tensor]:
        every = self.memory.exchange([part.clone() for part in mine])
        found: dict[str, Tensor] = {}
        for unit, parts in zip(self.parts.units, zip(*every, strict=True), strict=True):
            found |= unit.views(torch.cat(parts))
        self.memory.place.finish()  # before the parts go, which are other devices' memory
        return {name: tensor.cpu() for name, tensor in found.items()}

    def gathered(self, recorded: Recorded) -> list[Recorded] | None:
        """Return every rank's record, on rank 0."""
        every = self.memory.exchange(recorded)
        return every if self.rank == 0 else None

    def meet(self) -> None:
        self.memory.meet(MAIN)

    def close(self) -> None:
        for lane in self.parts.lanes.values():
            lane.close()

    def __enter__(self) -> "ThreadDevice":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.memory.fail(error)  # before lanes are closed, which may wait in a meeting
        self.close()
