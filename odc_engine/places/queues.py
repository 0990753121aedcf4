"""How many queues streams share into a GPU: settled by the environment before CUDA is first asked anything."""

from collections.abc import Mapping

# Streams share queues into a GPU, 8 as it is delivered, and two of one queue wait for each other without a reason:
# compute for a meeting, say. Not without end: what waits for other work is given after it, or that is another
# process's. There are 32 at most.
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


def queues(env: Mapping[str, str]) -> dict[str, str]:
    """What to set before CUDA is first asked anything, where the user has not."""
    return {name: value for name, value in QUEUES.items() if name not in env}
