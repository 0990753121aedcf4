"""The list of probes, and what one of them answers."""

import importlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

OK, FAILED, ABSENT = "ok", "failed", "absent"


@dataclass(frozen=True, slots=True)
class Answer:
    """`found` is one line for people, `data` the figures behind it."""

    status: str
    found: str
    data: dict[str, Any] = field(default_factory=dict)


class Absent(Exception):
    """Something that the probe needs is not there: nothing can be said."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A module with a function `probe() -> Answer`. `seconds`: after so many it is ended."""

    module: str
    asks: str
    seconds: float

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2].replace("_", "-")


def answer(module: str) -> Answer:
    """What a probe says, in this process."""
    try:
        return cast(Callable[[], Answer], importlib.import_module(module).probe)()
    except Absent as absent:
        return Answer(ABSENT, str(absent))
    except Exception as error:
        traceback.print_exc()
        return Answer(FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])


_HERE = "odc_engine.doctor.probes"
PROBES = (
    Probe(f"{_HERE}.versions", "what is installed: driver, GPU, packages, MPS", 60),
    Probe(f"{_HERE}.kernels", "do the Triton kernels move the right bytes, and how fast", 180),
    Probe(f"{_HERE}.partitions", "are green contexts of one split disjoint, and do they run at the same time", 120),
    Probe(f"{_HERE}.symmetric", "do processes on one GPU reach each other through torch symmetric memory", 180),
    Probe(f"{_HERE}.legacy_ipc", "do they through CUDA IPC handles", 120),
    Probe(f"{_HERE}.nvshmem_host", "does NVSHMEM start with two processes on one GPU, and copy on a stream", 120),
    Probe(f"{_HERE}.nvshmem_triton", "do Triton kernels get and put through NVSHMEM", 240),
    Probe(f"{_HERE}.gloo", "does gloo move CUDA tensors", 120),
    Probe(f"{_HERE}.nccl", "does NCCL take two processes on one GPU, or refuse", 120),
)
