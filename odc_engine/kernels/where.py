"""Which SMs a stream's work runs on, seen by the work itself."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from triton.language.extra.cuda import smid


@triton.jit
def sms(out):
    tl.store(out + tl.program_id(0), smid())
