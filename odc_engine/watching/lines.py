"""The watcher's file: a line for the run, then one for each step. A run that is killed leaves whole lines."""

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import torch

from odc_engine.started import started
from odcsim.errors import InputError

FORMAT = "odcsim watch"
VERSION = 1


def file_of(rank: int) -> str:
    return f"watch-rank{rank}.jsonl"


def place() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    by = started()
    return (by.rank, by.size) if by else (0, 1)


def opened(folder: Path, rank: int, header: dict[str, Any]) -> tuple[Path, TextIO]:
    """A file of its own in `folder`; where an earlier run has left one, in `folder-2`, `folder-3` and so on."""
    for number in range(1, 10_000):
        home = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            home.mkdir(parents=True, exist_ok=True)
            file = (home / file_of(rank)).open("x", encoding="utf-8")
            put(file, header)
        except FileExistsError:
            if home.is_dir():
                continue
            raise InputError("is no folder", where=str(home), fix="name a folder to watch into") from None
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(home), fix="name another one") from None
        if number > 1 and rank == 0:
            print(f"odc_engine.watch: into {home}, since {folder} has another run's", file=sys.stderr, flush=True)
        return home, file
    raise InputError("has been watched into too often", where=str(folder), fix="name another one")


def header(rank: int, ranks: int, trainer: str, device: str) -> dict[str, Any]:
    about = {"format": FORMAT, "version": VERSION, "rank": rank, "ranks": ranks}
    return about | {"trainer": trainer, "device": device, "torch": torch.__version__, "host": os.uname().nodename}


def put(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, separators=(",", ":")) + "\n")
    file.flush()
