"""GPU self-tests that the engine relies on, run one by one: `odc_engine doctor --gpu-selftest`.

Each probe runs in a process of its own, under a limit: NVSHMEM calls exit() on many errors, and a kernel that goes
wrong takes its process's GPU context along.
"""
