"""All probes, rung by rung of the ladder, and in each what says most first.

`odc_engine doctor --gpu-selftest` and `pytest -m gpu` ask those that hold or do not, `make validate-gpu` all of them. A
rung is one command, whose limits together leave it under nine minutes. What is asked on the fourth takes a GPU for each
device.
"""

from odc_engine.doctor.probes.base import Probe

HERE, MEASURED = "odc_engine.doctor.probes", "odc_engine.measuring.probes"
GPU = ("a GPU", "torch")
TRITON, NVSHMEM, SEVERAL = (*GPU, "Triton"), (*GPU, "nvshmem4py", "Triton"), (*GPU, "several GPUs")
KERNELS = (*GPU, "kernels")
FIRST = (
    Probe("versions", "what is installed: driver, GPU, packages, MPS", 30, f"{HERE}.versions:probe", ("a GPU",)),
    Probe(
        "one-stream",
        "does a thread on streams of a GPU get the gradients of one process",
        50,
        f"{HERE}.threads:one_stream",
        TRITON,
    ),
    Probe(
        "bf16",
        "does a whole minibatch in bf16 finish, with about the same gradients",
        35,
        f"{HERE}.threads:half",
        TRITON,
    ),
    Probe(
        "mesh",
        "do replicas of shards get the gradients of one process, and is float16 refused",
        25,
        f"{HERE}.meshes:probe",
        TRITON,
    ),
    Probe("kernels", "do the Triton kernels move the right bytes, and how fast", 65, f"{HERE}.kernels:probe", KERNELS),
    Probe("large", "the same where slots exceed 2 GiB, and elements 2^31", 21, f"{HERE}.kernels:large", KERNELS),
    Probe(
        "beside",
        "what do a matrix multiplication and transfers cost each other, by SMs, copy engine and priority",
        60,
        f"{HERE}.beside:probe",
        TRITON,
    ),
    Probe("times", "does every step begin after what it needs", 40, f"{HERE}.threads:times", TRITON),
)
SECOND = (Probe("whole", "how long the whole GPU takes for a microbatch", 40, f"{MEASURED}:whole", TRITON, 2, True),)
THIRD = (
    Probe(
        "symmetric",
        "do processes on one GPU reach each other through torch symmetric memory",
        45,
        f"{HERE}.peers:symmetric",
        KERNELS,
        rung=3,
    ),
    Probe(
        "legacy-ipc",
        "do processes on one GPU reach each other through CUDA IPC handles",
        30,
        f"{HERE}.peers:legacy",
        TRITON,
        rung=3,
        stands_in=False,
    ),
    Probe(
        "cuda-ipc",
        "do two processes over cuda_ipc get the gradients of one",
        45,
        f"{HERE}.processes:two",
        TRITON,
        rung=3,
    ),
    Probe(
        "cuda-ipc-4",
        "do four, with every way to sum gradients, and in nodes",
        50,
        f"{HERE}.processes:four",
        TRITON,
        rung=3,
    ),
    Probe(
        "nvshmem-host",
        "does NVSHMEM start with two processes on one GPU, and copy on a stream",
        30,
        f"{HERE}.nvshmem_host:probe",
        NVSHMEM,
        rung=3,
        stands_in=False,
    ),
    Probe(
        "nvshmem",
        "do two processes over nvshmem get the gradients of one, near and far",
        60,
        f"{HERE}.processes:near_and_far",
        NVSHMEM,
        rung=3,
        stands_in=False,
    ),
    Probe(
        "queue",
        "do processes that share a queue get the gradients of one",
        25,
        f"{HERE}.processes:queue",
        TRITON,
        rung=3,
    ),
    Probe(
        "pauses", "does emulated compute take its seconds on the stream", 25, f"{HERE}.processes:pauses", TRITON, rung=3
    ),
    Probe("gloo", "does gloo move CUDA tensors", 20, f"{HERE}.gloo:probe", GPU, rung=3),
    Probe(
        "nccl",
        "does NCCL take two processes on one GPU, or refuse",
        30,
        f"{HERE}.nccl:probe",
        GPU,
        rung=3,
        stands_in=False,
    ),
    Probe(
        "sanitizer",
        "do kernels stay within the memory that is theirs",
        40,
        f"{HERE}.checked:probe",
        (*TRITON, "compute-sanitizer"),
        rung=3,
        stands_in=False,
    ),
)
FOURTH = (
    Probe(
        "rival",
        "do processes with a GPU each get the gradients of one over NCCL",
        50,
        f"{HERE}.processes:rival",
        SEVERAL,
        rung=4,
    ),
    Probe(
        "exchange",
        "how fast GPUs gather and push, against NCCL and their own copy",
        60,
        f"{MEASURED}:exchange",
        (*SEVERAL, "Triton"),
        rung=4,
        measures=True,
        stands_in=False,
    ),
    Probe(
        "profile-processes",
        "a profile of ranks that each have a GPU of one machine",
        140,
        f"{MEASURED}:profile_of_processes",
        (*SEVERAL, "Triton"),
        rung=4,
        measures=True,
        stands_in=False,
    ),
    Probe(
        "profile-nccl",
        "how long NCCL takes between the same GPUs",
        110,
        f"{MEASURED}:profile_of_nccl",
        (*SEVERAL, "Triton"),
        rung=4,
        measures=True,
        stands_in=False,
    ),
)
PROBES = (*FIRST, *SECOND, *THIRD, *FOURTH)
HOLDING = tuple(probe for probe in PROBES if not probe.measures)
