"""Kernels that reach other nodes: NVSHMEM's device functions, called from Triton.

They are linked in from NVSHMEM's bitcode (`extern_libs={LIBRARY: path}`), and every module that has them must be told
where the library's state is once it is loaded (`initialize_on_load`): a module that was not told reads address 0.

Compiled without a GPU by tests; run by nobody yet.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.language import core

LIBRARY = "libnvshmem_device"
# Triton would compile and link anew for device 1, and for sizes that are no multiple of 16.
ANY = ["nbytes", "device"]
_STATE = "nvshmemi_device_state"  # what a module has in it that calls the library
_MOVE = (core.int64, core.int64, core.int64, core.int32)  # addresses here and there, bytes, device


@core.extern
def _get(target, source, nbytes, device, _semantic=None):
    call = {_MOVE: ("nvshmemx_getmem_nbi_block", core.int32)}
    arguments = [target, source, nbytes, device]
    return core.extern_elementwise("", "", arguments, call, is_pure=False, _semantic=_semantic)


@core.extern
def _put(target, source, nbytes, device, _semantic=None):
    call = {_MOVE: ("nvshmemx_putmem_nbi_block", core.int32)}
    arguments = [target, source, nbytes, device]
    return core.extern_elementwise("", "", arguments, call, is_pure=False, _semantic=_semantic)


@core.extern
def _quiet(_semantic=None):
    call = {(): ("nvshmem_quiet", core.int32)}
    return core.extern_elementwise("", "", [], call, is_pure=False, _semantic=_semantic)


@triton.jit(do_not_specialize=ANY)
def get_nbi(target, source, nbytes, device, block: tl.constexpr):
    """Ask for bytes of another device's arena, which lie where `source` does in the own one, to an address here.

    They are there when a kernel behind this one has quieted.
    """
    start = tl.program_id(0).to(tl.int64) * block
    size = tl.minimum(nbytes - start, block).to(tl.int64)
    _get(target.to(tl.int64) + start, source.to(tl.int64) + start, size, device)


@triton.jit
def quiet():
    """Wait for all that this device has asked for or sent."""
    _quiet()


@triton.jit(do_not_specialize=ANY)
def put_nbi(target, source, nbytes, device, block: tl.constexpr):
    """Send bytes from here to where `target` lies in another device's arena. They are there when a kernel behind this
    one has quieted, and what they are sent from is free then, too."""
    start = tl.program_id(0).to(tl.int64) * block
    size = tl.minimum(nbytes - start, block).to(tl.int64)
    _put(target.to(tl.int64) + start, source.to(tl.int64) + start, size, device)


def initialize_on_load(initialize: Callable[[int], Any]) -> Callable[[], None]:
    """Call `initialize` with each module that has NVSHMEM in it, whenever Triton loads one, from its cache too.
    What is returned ends that.

    The hook is a chain: others who use it, torch among them, stay in place.
    """

    def loaded(module: Any, _function: Any, name: str, files: dict[str, str] | None, _hash: str) -> None:
        ptx = (files or {}).get(f"{name}.ptx")
        if ptx and _STATE in Path(ptx).read_text(encoding="utf-8"):
            initialize(int(module))

    hooks = triton.knobs.runtime.kernel_load_end_hook
    hooks.add(loaded)
    return lambda: hooks.remove(loaded)


def move(kernel: Any, target: Any, source: Any, device: int, bitcode: str, block: int) -> None:
    """A get or a put, with as many programs as there are blocks of bytes. `target` and `source` are bytes."""
    nbytes = source.numel()
    kernel[(-(-nbytes // block),)](target, source, nbytes, device, block=block, extern_libs={LIBRARY: bitcode})


def settle(bitcode: str) -> None:
    """`quiet`, in the present stream's order."""
    quiet[(1,)](extern_libs={LIBRARY: bitcode})
