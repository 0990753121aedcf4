"""Keep synchronizations, and code that inspects pending gradients, out of torch.compile."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Call = TypeVar("Call", bound=Callable[..., Any])
FULL = "devices synchronize here: compile it without fullgraph=True"


def uncompiled(call: Call) -> Call:
    """Exclude `call` from compilation. torch loads its compiler for this, as FSDP2 does at first use."""
    return cast(Call, cast(Any, torch.compiler.disable)(call, reason=FULL))
