"""The interface of backends: one row for each way in which ranks reach each other, and each device type.

Other code asks a row and never compares its name. Reading rows loads no torch, so that help and refusals are quick: a
row imports what it needs to run inside its methods. `odc_engine.backends` lists them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from odcsim.errors import InputError
from odcsim.program import SHARDED, SIDES, SYNC_TABLE
from odcsim.recipe import USUAL, Recipe

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Collectives, Host, PeerMemory
    from odc_engine.places.place import Place

COLLECTIVES = tuple(name for name, sync in SYNC_TABLE.items() if sync.meets)
# Ranks that run different numbers of microbatches do not know the last one: they push after each.
ONE_SIDED = tuple(name for name, sync in SYNC_TABLE.items() if not sync.meets and sync.push_every_microbatch)
BOTH = SIDES[::-1]


@dataclass(frozen=True, slots=True)
class Use:
    """How a backend is about to be used."""

    devices: int  # on this machine
    recipe: Recipe = USUAL
    emulate: bool = False
    part: str = ""  # of a GPU for each device, as the backend's `part` says it; empty: equal ones

    def refuse_sums_afar(self) -> None:
        """Raise if sums are to be added in place while ranks are on several machines."""
        if self.recipe.sharding != "hybrid" and self.recipe.accumulate != "slots":
            fix = "use --accumulate slots, or --sharding hybrid"
            raise InputError("a network cannot add to a sum on another machine", fix=fix)


@dataclass(frozen=True, slots=True)
class Backend(ABC):
    """A row: `Processes` or `Threads`. Defaults suit a CPU, which needs nothing installed."""

    name: str  # --backend
    says: str = ""  # in a line of `doctor`; empty: none. {arenas} stands for what memory is made of here
    device: str = "cpu"  # what computes: cpu, or GPUs (cuda)
    help: str = ""  # what it is under --device, where that chooses between rows of one name
    syncs: tuple[str, ...] = (*COLLECTIVES, *ONE_SIDED)
    shardings: tuple[str, ...] = SHARDED
    profiled: tuple[str, ...] = ()  # syncs that `profile` measures, that of real compute first

    @property
    def one_sided(self) -> bool:
        """Whether ranks reach each other's memory. Other backends have collectives only."""
        return bool(set(self.syncs) - set(COLLECTIVES))

    @property
    def draws_on(self) -> str:
        """Return the device type that draws the initial weights. A GPU draws other numbers than a CPU."""
        return "cpu"

    def needs(self, use: Use) -> None:  # noqa: B027 - a processor is there
        """Raise InputError if this machine lacks something for this use, before anything starts."""

    def lacks(self) -> str:
        """Return how to install what is missing, "" if nothing is. Works without torch."""
        return ""

    def hardware(self, use: Use) -> str:  # noqa: ARG002
        """Describe the GPUs, "" if there are none."""
        return ""

    def part(self, devices: int) -> str:  # noqa: ARG002
        """Return the part of a GPU for each of so many ranks, "" if GPUs are not divided. Fewer ranks may get as
        much."""
        return ""

    def check_timed(self, devices: int) -> None:  # noqa: B027 - they share its cores, and that is measured
        """Raise InputError if times of so many ranks on this machine would be meaningless."""


@dataclass(frozen=True, slots=True)
class Processes(Backend):
    """A backend with one process per rank."""

    across: bool = False  # they may be on several machines
    rival: Optional["Processes"] = None  # whose collectives `bandwidth` holds it against; None: it is not measured
    library: str = ""  # whose collectives they are, where it is a rival

    @abstractmethod
    def memory(self, host: "Host", device: "torch.device | None" = None) -> "PeerMemory | Collectives":
        """Return a rank's memory. `host`: the same ranks, which can already synchronize. `device`: where its
        parameters are, None before it has any. All ranks call it together."""

    def env(self, use: Use) -> dict[str, str]:  # noqa: ARG002
        """Return more environment variables for a process, to set before it uses CUDA."""
        return {}


@dataclass(frozen=True, slots=True)
class Threads(Backend):
    """A backend with one thread per rank, in one process."""

    @property
    def draws_on(self) -> str:
        """One rank draws for all, in a second instead of a minute."""
        return self.device

    @abstractmethod
    def places(self, use: Use) -> Sequence["Place"]:
        """Return where each rank works."""
