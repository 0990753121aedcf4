"""GPUs of one node or many, a process for each, by NVSHMEM."""
