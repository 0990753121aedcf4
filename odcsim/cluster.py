"""What the model runs on: a GPU's figures, and how many sit in a node behind which network."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GPU:
    """One accelerator. Rates are per GPU and one direction; FLOP/s are dense bf16."""

    name: str
    peak_flops: float  # datasheet, FLOP/s
    matmul_flops: float  # best matmul measured by anybody we can cite, FLOP/s
    memory_bytes: float
    memory_bandwidth: float  # bytes/s
    link_bandwidth: float  # bytes/s to the peers of the node, all of them together
    nic_bandwidth: float  # bytes/s of the network share that one GPU typically has
    devices_per_node: int = 8
