"""Enter torch's collectives where a rank may fail before, and wait for them while ranks may die: gloo would report that
after half an hour, NCCL not at all."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from odc_engine.backends.base import Host
from odc_engine.backends.patience import Patience
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

Result = TypeVar("Result")

PAUSE = 200e-6  # seconds from one look to the next ...
LONG = 0.01  # ... and after so many seconds
SOON = 0.2


def agreed(group: dist.ProcessGroup | None, attempt: Callable[[], Result]) -> Result:
    """Return the result of an attempt if it succeeded on all ranks. Whatever it raises on one, all are told."""
    made: list[Result] = []
    problem: BaseException | None = None
    try:
        made.append(attempt())
    except OSError as error:
        problem = InputError(f"the system refuses what devices share ({error})", fix=way_out(error))
    except BaseException as error:
        problem = error
    told = [False] * dist.get_world_size(group)
    dist.all_gather_object(told, problem is not None, group=group)
    if problem is not None:
        raise problem
    if failed := [device for device, bad in enumerate(told) if bad]:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        raise PeerLost([ranks[device] for device in failed], "failed: its own error says why")
    return made[0]


def way_out(error: OSError, usual: str = "see 'odc_engine doctor' for what this machine allows") -> str:
    """Return what helps against an error of the system. `usual`: what helps where it is not a limit of open files."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files, with 'ulimit -n' before the program starts"
    return usual


def watched(work: dist.Work | None, host: Host) -> None:
    """Return when the collective is done, or queued on a stream. Raises PeerLost if one of the host's ranks is gone."""
    if work is None:
        return
    patience, others = Patience(), [device for device in range(host.size) if device != host.rank]
    while not work.is_completed():
        host.check()
        if over := patience.over(host, others):
            raise host.silent(others, f"did not answer within {over:g} s")
        time.sleep(LONG if patience.ended(SOON) else PAUSE)
    try:
        work.wait()
    except RuntimeError as error:  # which names nobody
        raise host.explain() or error from None
