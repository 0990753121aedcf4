"""A GPU for Triton that is not here: kernels are compiled for it as they are called, with tensors of a CPU, and what
would be launched is kept."""

from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from odc_engine.kernels import calls


class FakeDriver:
    """What Triton asks of a driver. `loading` is called while a GPU would load a kernel, as other threads run."""

    def __init__(self, loading: Callable[[], object]) -> None:
        self.launched: list[str] = []  # kernels, in turn
        self.loaded: list[str] = []  # and once for each time that one was compiled
        self._loading = loading
        self.utils = SimpleNamespace(load_binary=self._load, get_device_properties=lambda _: {"max_shared_mem": 232448})

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0

    def _load(self, name, binary, _shared, _device):
        assert binary[:4] == b"\x7fELF"
        self._loading()
        self.loaded.append(name)
        return 1, len(self.loaded), 0, 0, 1024

    def launcher_cls(self, _source, metadata):
        def launch(x, y, z, _stream, function, *_):
            if function is None:
                raise TypeError("the kernel is not loaded yet")  # the real one takes an integer
            assert x > 0
            assert y == z == 1
            self.launched.append(metadata.name)

        return launch


@contextmanager
def fake_gpu(*kernels, loading: Callable[[], object] = lambda: None):
    """These kernels are compiled and not run meanwhile."""
    before, entered = driver._active, FakeDriver(loading)
    driver.set_active(entered)
    try:
        for kernel in kernels:
            kernel.device_caches.clear()
        calls._known.clear()
        yield entered
    finally:
        driver._active = before
        for kernel in kernels:
            kernel.device_caches.clear()
        calls._known.clear()
