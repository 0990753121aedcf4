"""Backends: how ranks reach each other's memory and synchronize. This file lists them, one row each.

The command lines' choices and the fixes in error messages follow from the list.
"""

from odc_engine.backends import cuda_ipc, gloo, nccl, nvshmem, shm, tcp, threads
from odc_engine.backends.backend import Backend, Processes
from odcsim.errors import InputError, nearest
from odcsim.program import WHOLE
from odcsim.recipe import Recipe

ROWS: tuple[Backend, ...] = (
    shm.ROW,
    threads.CPU,
    threads.CUDA,
    tcp.ROW,
    gloo.ROW,
    nccl.ROW,
    cuda_ipc.ROW,
    nvshmem.ROW,
)
USUAL: Processes = shm.ROW


def names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.name for row in ROWS))


def devices() -> tuple[str, ...]:
    """Return the device types, the default first."""
    return tuple(dict.fromkeys(row.device for row in ROWS))


def by_device() -> tuple[str, ...]:
    """Return the backend names for which --device selects a row. The others run on one device type only."""
    every = [row.name for row in ROWS]
    return tuple(name for name in names() if every.count(name) > 1)


def chosen(name: str, device: str = USUAL.device) -> Backend:
    """Return the row for --backend and --device."""
    rows = {row.device: row for row in ROWS if row.name == name}
    if not rows:
        raise InputError(f"unknown backend '{name}'", fix=nearest(name, list(names())))
    if len(rows) == 1 and device == USUAL.device:
        return next(iter(rows.values()))
    if len(rows) == 1 or device not in rows:
        fix = f"--backend {' or '.join(by_device())}, or leave --device out"
        raise InputError(f"--device {device} with backend {name}", fix=fix)
    return rows[device]


def label(row: Backend) -> str:
    """Return a row's name, with the device type if another row has the same name."""
    return row.name if chosen(row.name) is row else f"{row.name} {row.device}"


def usual(device: str, *, across: bool = False) -> Processes:
    """Return the default row for parameters on this device type. `across`: ranks are on several machines."""
    rows = (row for row in ROWS if isinstance(row, Processes) and row.device == device and row.one_sided)
    return next(row for row in rows if row.across >= across)


def across() -> tuple[str, ...]:
    """Return the backends that run every sync across several machines."""
    return tuple(row.name for row in ROWS if isinstance(row, Processes) and row.across and row.one_sided)


def profiled() -> list[str]:
    """Return the backends that `profile` measures, those that measure more first."""
    return list(dict.fromkeys(row.name for row in sorted(ROWS, key=lambda row: -len(row.profiled)) if row.profiled))


def measured() -> dict[str, Processes]:
    """Return the backends whose rates `bandwidth` measures, by name."""
    return {row.name: row for row in ROWS if isinstance(row, Processes) and row.rival}


def check(row: Backend, recipe: Recipe) -> None:
    """Raise if the backend does not support the recipe."""
    sync, sharding = recipe.sync, recipe.sharded("full").sharding
    others = next((other.name for other in ROWS if sync in other.syncs), "")
    if not others:
        raise InputError(f"the engine does not run {sync} sync", fix=f"use --sync {' or '.join(row.syncs)}")
    if sync not in row.syncs:
        raise InputError(
            f"backend {row.name} has {' and '.join(row.syncs) if row.one_sided else 'collectives'} only",
            fix=f"use --backend {others}, or --sync {' or '.join(row.syncs)}",
        )
    if sharding == WHOLE:
        raise InputError("--sharding none", fix="use full or hybrid: the engine shards, and DDP needs none")
    if sharding not in row.shardings:
        others = ", ".join(dict.fromkeys(other.name for other in ROWS if sharding in other.shardings))
        raise InputError(f"backend {row.name} has no {sharding} sharding", fix=f"use --backend {others}")
