"""What people of the field type into the site's search, and the page that is to be the first result, or one of two."""

_FOUND = """
howto/slow-step: straggler, idle time, bubble, pipeline parallelism
howto/perfetto howto/slow-step: profiler trace
odc: load imbalance, all-gather, reduce-scatter, gradient accumulation, on-demand communication
balancing: load balancing
howto/flags: dynamic batching, sequence packing, padding
howto/lengths: truncation, sequence length
howto/recompute: activation checkpointing, out of memory, OOM
howto/recompute model/memory: peak memory
users model/memory: token limit
faq: resume from a checkpoint, speedup, LoRA, context parallelism, multimodal
neighbours: MFU, Megatron
model/statistics: confidence interval
howto/network: hybrid sharding, HSDP
howto/own-cluster: InfiniBand, heterogeneous cluster
howto/check engine/gpus: NCCL
howto/check: deadlock
engine/gpus faq: NVSHMEM
howto/rl: GRPO, rollouts
howto/pairs: DPO
howto/rent: training cost, price, which GPU to rent, deadline, budget
trl howto/flags: TRL
verl howto/flags: verl
torchtitan: torchtitan
hugging-face: Hugging Face Trainer
own-loop losses: sampler
own-loop: DataLoader
howto/launch: fault tolerance, Slurm
howto/calibrate: throughput
"""
ROWS = [row.split(": ") for row in _FOUND.strip().splitlines()]
SEARCHES = {words: pages.split() for pages, found in ROWS for words in found.split(", ")}
