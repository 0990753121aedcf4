"""Threads of one process, on its processor or each on SMs of its GPU."""
