"""What a backend is: one row for each way in which devices reach each other, and for what they compute on.

Everybody else asks a row and never for its name. Help and refusals are quick, so reading rows loads no torch: what one
needs to run is imported inside its methods. `odc_engine.backends` lists them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from odcsim.errors import InputError
from odcsim.program import SHARDINGS, SYNCS, sync_named
from odcsim.recipe import USUAL, Recipe

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Collectives, Host, PeerMemory
    from odc_engine.places.place import Place

COLLECTIVES = tuple(sync for sync in SYNCS if sync_named(sync).meets)
BOTH = ("on-demand", "collective")


@dataclass(frozen=True, slots=True)
class Use:
    """What somebody is about to do with a backend."""

    devices: int  # on this machine
    recipe: Recipe = USUAL
    emulate: bool = False
    part: str = ""  # of a GPU for each device, as the backend's `part` says it; empty: equal ones

    def refuse_sums_afar(self) -> None:
        """Where devices are on several machines."""
        if self.recipe.sharding != "hybrid" and self.recipe.accumulate != "slots":
            fix = "use --accumulate slots, or --sharding hybrid"
            raise InputError("a network cannot add to a sum on another machine", fix=fix)


@dataclass(frozen=True, slots=True)
class Backend(ABC):
    """A row: `Processes` or `Threads`. What it leaves out is as on a processor, where nothing has to be there."""

    name: str  # --backend
    says: str = ""  # in a line of `doctor`; empty: none. {arenas} stands for what memory is made of here
    device: str = "cpu"  # what computes: cpu, or GPUs (cuda)
    help: str = ""  # what it is under --device, where that chooses between rows of one name
    syncs: tuple[str, ...] = SYNCS
    shardings: tuple[str, ...] = SHARDINGS
    profiled: tuple[str, ...] = ()  # syncs that `profile` measures, that of real compute first
    least_timed: int = 0  # tokens of a microbatch below which its seconds are not its device's own

    @property
    def one_sided(self) -> bool:
        """Whether devices reach each other's memory. Others have collectives alone."""
        return bool(set(self.syncs) - set(COLLECTIVES))

    @property
    def draws_on(self) -> str:
        """What draws the first weights. A GPU draws others than a processor."""
        return "cpu"

    def needs(self, use: Use) -> None:  # noqa: B027 - a processor is there
        """Raise InputError where this machine lacks something for it. Before anything is started."""

    def lacks(self) -> str:
        """How to get what is not installed, "" where all is. Without torch too."""
        return ""

    def hardware(self, use: Use) -> str:  # noqa: ARG002
        """The GPUs in words, "" where there are none."""
        return ""

    def part(self, devices: int) -> str:  # noqa: ARG002
        """Of a GPU for each of so many devices, "" where nothing divides one. Fewer may be given as much."""
        return ""

    def check_timed(self, devices: int) -> None:  # noqa: B027 - they share its cores, and that is measured
        """Raise InputError where times of so many devices here would mean nothing."""


@dataclass(frozen=True, slots=True)
class Processes(Backend):
    """Each device is one."""

    across: bool = False  # they may be on several machines
    rival: Optional["Processes"] = None  # whose collectives `bandwidth` holds it against; None: it is not measured
    library: str = ""  # whose collectives they are, where it is a rival

    @abstractmethod
    def memory(self, host: "Host", device: "torch.device | None" = None) -> "PeerMemory | Collectives":
        """What a device has of it. `host`: the same devices, which can meet already. `device`: where its parameters
        are, None before it has any. All make it together."""

    def env(self, use: Use) -> dict[str, str]:  # noqa: ARG002
        """More for a process's environment, before it touches CUDA."""
        return {}


@dataclass(frozen=True, slots=True)
class Threads(Backend):
    """All devices are of one process."""

    @property
    def draws_on(self) -> str:
        """One device draws for all, in a second instead of a minute."""
        return self.device

    @abstractmethod
    def places(self, use: Use) -> Sequence["Place"]:
        """Where each device works."""
