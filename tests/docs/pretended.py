"""Runs a program with accelerate taking processes without GPUs for GPUs: it offers FSDP2 for those alone.

torchrun --nproc-per-node 2 pretended.py program.py
"""

import runpy
import sys

from accelerate import state
from accelerate.utils import DistributedType

made = state.PartialState.__init__


def make(self, cpu=False, **kwargs):  # noqa: ARG001
    made(self, cpu=True, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        state.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


if __name__ == "__main__":
    state.PartialState.__init__ = make
    runpy.run_path(sys.argv[1], run_name="__main__")
