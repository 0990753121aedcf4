"""What is known of a trainer that others wrote, and the row that its settings are to say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from odcsim.heuristics.balancer import Deal, Work

ENGINE = "on-demand"  # what no trainer runs by itself
COLLECTIVE = ("collective",)
LAST = ("deferred",)  # accelerate's no_sync: gradients leave after the last microbatch
GITHUB = "https://github.com"
OPTIMIZERS = {"8bit": "adamw_torch_8bit"}  # of transformers; that of bitsandbytes does not take FSDP2's tensors
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChosenRow:
    """How a step is to be run. `microbatches` of a device and step, on average."""

    way: str  # the sync
    balancer: str
    devices: int
    per_node: int
    minibatch: int  # samples of a device and step
    max_tokens: int
    microbatches: float
    recompute: str = "full"  # as a recipe has it
    hybrid: bool = False
    on_host: bool = False  # the optimizer's states
    rank: int = 0  # of adapters, which alone are trained
    moments: str = "fp32"
    rollouts: int = 1  # samples of a prompt

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.per_node)

    @property
    def samples(self) -> int:
        """Of a step, on all devices."""
        return self.devices * self.minibatch

    @property
    def packs(self) -> int:
        """Microbatches of a device where each is filled to the limit: the steps that gradients are accumulated over."""
        return max(1, round(self.microbatches))


@dataclass(frozen=True, slots=True)
class Neighbour:
    """How its settings are called and written (`form`: shell, hydra or yaml), where that was read, and how it deals."""

    name: str
    form: str
    source: str
    settings: Callable[[ChosenRow], Settings]
    met: tuple[str, ...]  # syncs that it runs by itself
    rule: str  # by which it deals samples to devices and microbatches
    knows: frozenset[str] = frozenset()  # what of a recipe its settings say, beside recompute of whole layers
    engine: str = ""  # the page on running it on demand by odc_engine
    caution: str = ""
    deal: Callable[[Work], Deal] | None = None  # its rule, as a rival to our balancers
    help: str = ""  # a line on that rival

    @property
    def ways(self) -> tuple[str, ...]:
        return (*self.met, ENGINE) if self.engine else self.met


def optimizer(name: str, row: ChosenRow) -> Settings:
    """What transformers calls it, where another than its usual one is meant."""
    known = OPTIMIZERS.get(row.moments)
    return {name: known} if known else {}
