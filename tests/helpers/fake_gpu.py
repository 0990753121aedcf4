"""A GPU for Triton that is not here: kernels are compiled for it as they are called, with tensors of a CPU, and what
would be launched is kept."""

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """One launch: what Triton compiled it from (its types and constants), the grid, and the arguments by name."""

    name: str
    source: Any
    programs: int
    warps: int
    arguments: dict[str, Any]


class FakeDriver:
    """What Triton asks of a driver."""

    def __init__(self, kernels: tuple[Any, ...], capability: int) -> None:
        self._kernels = kernels
        self.launches: list[Launched] = []  # in turn
        self.loaded: list[str] = []  # a kernel's name for each time that one was compiled
        self._capability = capability
        self.utils = SimpleNamespace(load_binary=self._load, get_device_properties=lambda _: {"max_shared_mem": 232448})

    @property
    def launched(self) -> list[str]:
        return [launch.name for launch in self.launches]

    def code(self, launch: Launched) -> dict[str, Any]:
        """What became of a launch's kernel on its way to the GPU. Known until the kernels forget it."""
        made = (each for kernel in self._kernels for each in kernel.device_caches[0][0].values())
        return next(each for each in made if each.src is launch.source).asm

    def get_current_target(self):
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0

    def _load(self, name, binary, _shared, _device):
        assert binary[:4] == b"\x7fELF"
        self.loaded.append(name)
        return 1, len(self.loaded), 0, 0, 1024

    def launcher_cls(self, source, metadata):
        def launch(x, y, z, _stream, _function, _packed, _metadata, _enter, _leave, *arguments):
            assert x > 0
            assert y == z == 1
            named = dict(zip(source.fn.arg_names, arguments, strict=True))
            self.launches.append(Launched(metadata.name, source, x, metadata.num_warps, named))

        return launch


@contextmanager
def fake_gpu(*kernels, capability: int = 90):
    """These kernels are compiled and not run meanwhile."""
    before, entered = driver._active, FakeDriver(kernels, capability)
    driver.set_active(entered)
    try:
        for kernel in kernels:
            kernel.device_caches.clear()
        yield entered
    finally:
        driver._active = before
        for kernel in kernels:
            kernel.device_caches.clear()
