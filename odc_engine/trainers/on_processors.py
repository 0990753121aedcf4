"""The trainers of transformers and TRL over FSDP2 on a machine without GPUs, to try a program out.

    torchrun --nproc-per-node 2 -m odc_engine.trainers.on_processors pretrain.py

or, in the program itself, before it makes its arguments:

    from odc_engine.trainers.on_processors import on_processors

    on_processors()

accelerate offers FSDP2 for GPUs and the like alone. Here it takes processes without one for such: what is computed is
the same, at a processor's pace. Where there is a GPU, nothing changes.
"""

import functools
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from odcsim.errors import InputError

HOW = "torchrun --nproc-per-node 2 -m odc_engine.trainers.on_processors pretrain.py"


def on_processors() -> None:
    state: Any = import_module("accelerate.state")
    kinds, made = state.DistributedType, state.PartialState.__init__
    if torch.accelerator.is_available() or hasattr(made, "__wrapped__"):
        return

    @functools.wraps(made)
    def make(self: Any, cpu: bool = False, **how: Any) -> None:  # noqa: ARG001 - there is nothing else
        made(self, cpu=True, **how)
        if self.distributed_type == kinds.MULTI_CPU:
            state.PartialState._shared_state["distributed_type"] = kinds.MULTI_GPU

    state.PartialState.__init__ = make


def main(arguments: list[str]) -> None:
    """The program and its own arguments."""
    path = arguments[0] if arguments else ""
    if not Path(path).is_file():
        raise InputError(f"no program '{path}'", fix=HOW)
    on_processors()
    sys.argv, sys.path[0] = arguments, str(Path(path).resolve().parent)
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(f"odc_engine: error: {error}", file=sys.stderr)
        sys.exit(2)
