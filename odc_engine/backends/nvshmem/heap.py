"""The size of NVSHMEM's symmetric heap, as somebody may have set it. Needs neither torch nor NVSHMEM."""

import os
import re
from collections.abc import Mapping

from odcsim.errors import InputError

HEAP = "NVSHMEM_SYMMETRIC_SIZE"
EXTRA = 64 << 20  # bytes beside the arena: alignment, and what the library keeps there itself
GRANULE = 512 << 20  # bytes by which the library takes a GPU's memory, where NVSHMEM_CUMEM_GRANULARITY is not set


def heap_size(environment: Mapping[str, str] | None = None) -> int:
    """In bytes, 0 where nobody has said. As the library reads it: a number, and one letter."""
    text = (os.environ if environment is None else environment).get(HEAP, "")
    if not text:
        return 0
    if not (read := re.match(r"(\d*\.?\d+)([kKmMgGtT]?)", text)):
        raise InputError(f"{HEAP}={text} is not a size", fix="give bytes, or a number with K, M, G or T; or unset it")
    return int(float(read[1]) * 1024 ** (" KMGT".index(read[2].upper()) if read[2] else 0))


def taken(nbytes: int) -> int:
    """Bytes of the GPU's memory that an arena takes: in whole granules, and one of the library's own."""
    return (-(-nbytes // GRANULE) + 1) * GRANULE


def check_heap(nbytes: int) -> None:
    """Refuse one that is too small for an arena: the library would end the process."""
    need = nbytes + EXTRA
    if 0 < heap_size() < need:
        raise InputError(
            f"{HEAP}={os.environ[HEAP]} is too small for an arena of {nbytes / 1e6:.0f} MB",
            fix=f"unset it, then the engine sets what it needs, or give at least {need}",
        )
