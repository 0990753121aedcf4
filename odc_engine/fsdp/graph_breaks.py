"""What torch.compile leaves out, whatever a user compiles: meetings, and what looks at gradients on their way."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Call = TypeVar("Call", bound=Callable[..., Any])
FULL = "devices meet there: compile it without fullgraph=True"


def uncompiled(call: Call) -> Call:
    """torch loads its compiler for that, as FSDP2 does at its first use."""
    return cast(Call, cast(Any, torch.compiler.disable)(call, reason=FULL))
