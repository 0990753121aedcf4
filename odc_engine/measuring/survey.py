"""What `profile` and `bandwidth` are asked to measure, refused before torch loads where it makes no sense."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from odc_engine import backends
from odc_engine.backends.backend import Backend, Use
from odc_engine.job import check_model
from odc_engine.measuring import calibration
from odc_engine.started import started
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.recipe import USUAL, Recipe
from odcsim.support.budget import in_words

MOST = 256  # devices: more are a slip of the finger, and would bring the machine down
MOST_TOKENS = 1 << 18  # of a microbatch: attention over more takes hours, and what it keeps a machine's memory
KEPT = 4096  # tokens on a GPU whose activations fit beside everything else
LEAST = max(calibration.SPLITS) * calibration.LEAST * 2  # tokens of the fullest microbatch: less leaves little to vary
COPIES = 4  # of the full tensor: shards, sums, what is gathered and what is pushed, about
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)  # bytes of the full tensor


@dataclass(frozen=True, slots=True)
class Survey:
    """What to measure. Compute is real on the first number of devices and emulated on the others."""

    model: Model
    devices: tuple[int, ...] = (2,)
    backend: Backend = backends.USUAL
    most: int = 1024  # tokens of the fullest microbatch
    quick: bool = False
    seed: int = 0
    timeout: float = 600.0
    recipe: Recipe = USUAL  # of which the legs choose sync and recompute themselves

    def check(self) -> None:
        """What can be told before torch loads, which takes seconds."""
        if (place := started()) is not None:
            raise InputError("profile starts its devices itself", fix=f"start it without {place.by}")
        if not self.backend.profiled:
            name = backends.label(self.backend)
            raise InputError(f"backend '{name}'", fix=f"one of {', '.join(backends.profiled())}")
        check_devices(self.devices, fix="--devices 2 or more")
        if len(set(self.devices)) < len(self.devices):
            raise InputError("a number of devices is named twice", fix="name it once")
        if self.most < LEAST:
            raise InputError(f"--max-tokens {self.most} leaves too little to vary", fix=f"at least {LEAST}")
        if self.most > MOST_TOKENS:
            raise InputError(f"--max-tokens {self.most:,} takes hours", fix=f"at most {MOST_TOKENS:,}")
        check_model(self.model)

    def check_here(self) -> None:
        """What takes torch to know: whether this machine has the GPUs."""
        self.backend.check_timed(max(self.devices))

    @property
    def kept(self) -> int:
        """Tokens of the fullest microbatch of layers that keep all for their backward. A token of a model of 1.5
        billion parameters takes 3 MB then, and several devices may share a GPU."""
        return self.most if self.backend.device == "cpu" else min(KEPT, self.most)

    @property
    def use(self) -> Use:
        """Of the most devices: fewer of them have as much of a GPU each, so that they are the same devices."""
        return Use(max(self.devices), part=self.backend.part(max(self.devices)))

    @property
    def told(self) -> str:
        """The settings in words. Measurements of others are not mixed with these."""
        devices = ", ".join(map(str, self.devices))
        speed = "quick" if self.quick else "full"
        model = f"{self.model.parameters:,} parameters"
        backend = f"{self.backend.name} on {self.backend.device}, {self.recipe.dtype}"
        return f"{speed}; {model}; devices {devices}; backend {backend}; up to {self.most} tokens; seed {self.seed}"


def check_devices(devices: Sequence[int], fix: str) -> None:
    if min(devices) < 2:
        raise InputError(f"{min(devices)} devices have nobody to exchange with", fix=fix)
    if max(devices) > MOST:
        raise InputError(f"{max(devices)} devices, each a process of this machine", fix=f"at most {MOST}")


def check_rates(devices: Sequence[int], sizes: Sequence[int]) -> None:
    check_devices(devices, fix="--devices 2,4")
    for n in devices:
        for size in sizes:
            if size <= 0 or size % (4 * n):
                raise InputError(f"{size} bytes are not divided by {n} devices into fp32", fix="--bytes 65536,1048576")
            if COPIES * size > (there := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
                needed = f"{size} bytes take {in_words(COPIES * size)} of this machine's {in_words(there)} of memory"
                raise InputError(needed, fix=f"--bytes {there // COPIES // (4 * n) * (4 * n)} or fewer")
