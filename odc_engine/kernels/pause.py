"""Time that passes on a stream, by the GPU's own clock: stands for compute, and takes one SM and no memory."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
from triton.language.extra.cuda import globaltimer


@triton.jit(do_not_specialize=["nanoseconds"])
def pause(nanoseconds):
    began = globaltimer()
    now = began
    while now - began < nanoseconds:
        now = globaltimer()
