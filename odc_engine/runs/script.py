"""Run a training script until its first on-demand minibatch is settled, and check that minibatch's gradients."""

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from odc_engine.fsdp.agreement import Reason
from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.runs.check import Distances, compared
from odc_engine.runs.replay.recording import Recording
from odcsim.errors import InputError

HOW = "torchrun --nproc-per-node 2 --no-python odc_engine verify --script train.py"


class Checked(BaseException):
    """Ends the script once it is checked. Neither an Exception, which training loops catch, nor a SystemExit, which
    some swallow."""

    def __init__(self, odc: OnDemand, distances: Distances) -> None:
        self.odc, self.distances = odc, distances
        super().__init__()


def verify_script(arguments: Sequence[str]) -> int:
    """Run and check a script. `arguments`: the script and its own."""
    path = arguments[0] if arguments else ""
    if not Path(path).is_file():
        raise InputError(f"no script '{path}'", fix=HOW)
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        with _first_settled():
            runpy.run_path(path, run_name="__main__")
    except Checked as end:
        if end.odc.rank == 0 and end.odc.replicas.speaks:
            print(f"{Path(path).name}: {end.distances}", flush=True)
        end.odc.close()
        dist.destroy_process_group()
        return int(not end.distances.ok)
    raise InputError(f"{path} ended before a minibatch on demand was settled", fix="train at least one minibatch in it")


@contextmanager
def _first_settled() -> Iterator[None]:
    """Record passes of every OnDemand that is made; the first to settle one is compared, and ends the script."""
    make, settle = OnDemand.__init__, OnDemand.meet_to_settle
    recordings: dict[int, Recording] = {}

    def noting(self: OnDemand, *args: Any, **how: Any) -> None:
        make(self, *args, **how)
        if self.size == 1:
            raise InputError("a single device has nothing to check", fix=HOW)
        recordings[id(self)] = Recording(self.model)

    def ending(self: OnDemand, reason: Reason) -> None:
        settle(self, reason)
        raise Checked(self, compared(self, recordings[id(self)].passes))

    OnDemand.__init__, OnDemand.meet_to_settle = noting, ending  # type: ignore[method-assign]
    try:
        yield
    finally:
        OnDemand.__init__, OnDemand.meet_to_settle = make, settle  # type: ignore[method-assign]
