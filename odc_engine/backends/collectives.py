"""Wait for torch's collectives while ranks may die: gloo would report that after half an hour, NCCL not at all."""

import time

import torch.distributed as dist

from odc_engine.backends.base import Host
from odc_engine.backends.patience import Patience

PAUSE = 200e-6  # seconds from one look to the next ...
LONG = 0.01  # ... and after so many seconds
SOON = 0.2


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
