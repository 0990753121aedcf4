"""What has to hold on a GPU before the engine may rely on it, asked one by one: `odc_engine doctor --gpu-selftest`.

Each probe runs in a process of its own, under a limit: NVSHMEM calls exit() on many errors, and a kernel that goes
wrong takes its process's GPU context along.
"""
