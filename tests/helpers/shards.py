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
    devices = draw(st.integers(1, 4))
    return Case(
        devices,
        draw(st.integers(0, devices - 1)),
        draw(st.integers(0, largest)),
        16 * draw(st.integers(0, 5)),
        draw(st.sampled_from(blocks)),
        draw(st.integers(*programs)),
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(DTYPES)),
        draw(st.integers(0, 2**31)),
        where,
    )
