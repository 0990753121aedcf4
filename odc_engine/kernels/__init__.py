"""Triton kernels that move units between devices' arenas. `device` and `transfers` need Triton; this file does not."""
