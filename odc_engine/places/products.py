"""For how many SMs matrix products are planned. cuBLAS counts those of the whole GPU, also for a stream that has but a
group of them. All that the engine uses of torch's private call for it is here."""

from typing import Any

import torch

_C: Any = torch._C  # torch has no types for it


def plan_for(sms: int, every: int) -> bool:
    """From now on in this process, all of whose groups are alike. False where this torch cannot say so."""
    if not hasattr(_C, "_set_sm_carveout_experimental"):
        return False
    _C._set_sm_carveout_experimental(every - sms if sms < every else None)
    return True
