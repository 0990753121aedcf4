"""The watcher's file: one line for the run, then one per step. A killed run leaves only whole lines."""

import itertools
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any, TextIO

import torch

from odc_engine.started import started
from odcsim.errors import InputError

FORMAT = "odcsim watch"
VERSION = 1
MOST = 10_000  # folders of one name
_OPENED = itertools.count()  # runs that this process has watched


def file_of(rank: int | str) -> str:
    return f"watch-rank{rank}.jsonl"


def place() -> tuple[int, int]:
    """Return this process's rank, and the number of ranks."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    by = started()
    return (by.rank, by.size) if by else (0, 1)


def opened(folder: Path, rank: int, header: dict[str, Any]) -> tuple[Path, TextIO]:
    """Open a new file in `folder`; if an earlier run left one, in `folder-2`, `folder-3` and so on.

    Ranks with a process group use the folder and the run's name that the first of them chose.
    """
    if agreed := _agreed(folder):
        home, run = agreed
        try:
            return home, _begun(home, rank, header | {"run": run})
        except FileExistsError:
            fix = "remove it, or name another folder"
            raise InputError(
                "a file of another run is already here", where=str(home / file_of(rank)), fix=fix
            ) from None
    for number in range(1, MOST):
        home = _numbered(folder, number)
        try:
            file = _begun(home, rank, header | {"run": _named()})
        except FileExistsError:
            continue
        if number > 1 and rank == 0:
            _say_moved(folder, home)
        return home, file
    raise InputError("holds too many runs", where=str(folder), fix="name another one")


def _begun(home: Path, rank: int, header: dict[str, Any]) -> TextIO:
    try:
        home.mkdir(parents=True, exist_ok=True)
        file = (home / file_of(rank)).open("x", encoding="utf-8")
        put(file, header)
    except FileExistsError:
        if home.is_dir():
            raise
        raise InputError("is no folder", where=str(home), fix="name a folder to watch into") from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(home), fix="name another one") from None
    return file


def _agreed(folder: Path) -> tuple[Path, str] | None:
    """Return the common choice, through the process group's store, so that no rank waits. None without such a store."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    numbers = (n for n in range(1, MOST) if not any(_numbered(folder, n).glob(file_of("*"))))
    home, run = _numbered(folder, next(numbers, MOST)), uuid.uuid4().hex
    key = f"odc_engine.watch/{next(_OPENED)}"
    store = dist.distributed_c10d._get_default_store()
    told: list[str] = json.loads(store.compare_set(key, "", json.dumps([str(home), run])))
    if told[1] == run and home != folder:
        _say_moved(folder, home)
    return Path(told[0]), told[1]


def _named() -> str:
    """Return the launcher's name of the run, which all its processes share, else one of this process."""
    words = [os.environ.get(f"TORCHELASTIC_{word}", "") for word in ("RUN_ID", "RESTART_COUNT")]
    return "-".join(words) if words[0] not in ("", "none") else uuid.uuid4().hex


def _numbered(folder: Path, number: int) -> Path:
    return folder if number == 1 else folder.with_name(f"{folder.name}-{number}")


def _say_moved(folder: Path, home: Path) -> None:
    print(f"odc_engine.watch: into {home}, since {folder} has another run's", file=sys.stderr, flush=True)


def header(rank: int, ranks: int, trainer: str, device: str) -> dict[str, Any]:
    about = {"format": FORMAT, "version": VERSION, "rank": rank, "ranks": ranks}
    return about | {"trainer": trainer, "device": device, "torch": torch.__version__, "host": os.uname().nodename}


def put(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, separators=(",", ":")) + "\n")
    file.flush()
