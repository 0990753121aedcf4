"""Detect whether torchrun or Slurm's srun started this process as one of several.

Both set environment variables. Slurm sets some of them in a batch script too, which is not a task: it has no step id. A
single task has no peers, and starts its own.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from odcsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Started:
    by: str  # torchrun or srun
    rank: int
    size: int
    local_rank: int
    here: int  # of them on this machine
    address: str  # where they find each other

    @property
    def one_machine(self) -> bool:
        return self.here == self.size

    def fix(self, devices: int) -> str:
        """Return how to start so many ranks on one machine."""
        if self.by == "srun":
            return f"srun --nodes 1 --ntasks {devices}"
        return f"--nnodes 1 --nproc-per-node {devices}"


def started(environment: Mapping[str, str] | None = None) -> Started | None:
    """Return who started this process, None if it was started alone. Torchrun takes precedence over Slurm, under
    which it may run."""
    env = os.environ if environment is None else environment
    if "RANK" in env and "WORLD_SIZE" in env:
        rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
        local, here = _number(env, "LOCAL_RANK", rank), _number(env, "LOCAL_WORLD_SIZE", size)
        return Started("torchrun", rank, size, local, here, "env://")
    return _by_srun(env) if _is_task(env) else None


def _is_task(env: Mapping[str, str]) -> bool:
    step = "SLURM_STEP_ID" in env or "SLURM_JOB_ID" not in env
    return step and "SLURM_PROCID" in env and _number(env, "SLURM_NTASKS", 1) > 1


def _by_srun(env: Mapping[str, str]) -> Started:
    rank, size = _number(env, "SLURM_PROCID"), _number(env, "SLURM_NTASKS")
    address = f"tcp://{_first_host(env)}:{_port(env)}"
    return Started("srun", rank, size, _number(env, "SLURM_LOCALID", rank), _tasks_here(env, size), address)


def _tasks_here(env: Mapping[str, str], size: int) -> int:
    """Parse Slurm's tasks per node: `2(x3),1` means two on each of three machines, one on the next."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", "")
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else size


def _first_host(env: Mapping[str, str]) -> str:
    """Return the first host of Slurm's list, such as `gpu[03-05,9],cpu1`, unless MASTER_ADDR says otherwise."""
    if told := env.get("MASTER_ADDR"):
        return told
    first = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,]*)", env.get("SLURM_STEP_NODELIST", ""))
    return "".join(part or "" for part in first.groups()) if first else "127.0.0.1"


def _port(env: Mapping[str, str]) -> int:
    """Return the store's port: the same for all tasks of a step, another one for the next step."""
    if "MASTER_PORT" in env:
        return _number(env, "MASTER_PORT")
    return 20000 + (_number(env, "SLURM_JOB_ID", 0) * 61 + _number(env, "SLURM_STEP_ID", 0)) % 12000


def _number(env: Mapping[str, str], name: str, other: int | None = None) -> int:
    text = env.get(name)
    if text is None and other is not None:
        return other
    if text is None or not text.isdigit():
        raise InputError(f"{name}={text or ''} is not a whole number", fix="unset it, or let torchrun or srun set it")
    return int(text)
