"""Cases for what the kernels must do (shard_laws), drawn, and kernels that run on a CPU."""

import importlib.util
import os

from hypothesis import strategies as st
from shard_laws import DTYPES, Case, check_add, check_far_apart, check_gather, check_sums, check_total, check_write

__all__ = [
    "Case",
    "cases",
    "check_add",
    "check_far_apart",
    "check_gather",
    "check_sums",
    "check_total",
    "check_write",
    "interpreted",
]


def triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted():
    """The calls, of kernels that run on a CPU from now on, and in this process: Triton looks when it first sees one."""
    os.environ["TRITON_INTERPRET"] = "1"
    return importlib.import_module("odc_engine.kernels.transfers")


@st.composite
def cases(draw, where="cpu", largest=200, blocks=(16, 64), programs=(1, 7)):
    devices, dtypes = draw(st.integers(1, 4)), st.sampled_from(DTYPES)
    sizes = st.integers(0, devices - 1), st.integers(0, largest), st.sampled_from(range(0, 81, 16))
    rest = st.sampled_from(blocks), st.integers(*programs), dtypes, dtypes, st.integers(0, 2**31)
    return Case(devices, *map(draw, (*sizes, *rest)), where)
