"""Reading eight ranks' profiler traces of 300 MB, by `pytest tests/benchmarks --benchmark-only -k eight_ranks -s`.

Targets: 2 minutes and 2 GB.
"""

import json
import subprocess
import sys

from traces import MadeStep, made, trace

RANKS, STEPS, MICROBATCHES, UNITS = 8, 8, 8, 128
KERNELS, OPERATORS = 12, 36  # for each unit, as a decoder's layer has them
MEGABYTES = 300
READ = """
import sys, time
from pathlib import Path
from odcsim.observed import torch_traces
began = time.perf_counter()
run = torch_traces.read(sys.argv[1:])
seconds = time.perf_counter() - began
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1e6
pieces = sum(len(track.kinds) for step in run.steps for track in step.tracks)
print(len(run.seen), len(run.steps), pieces, seconds, peak)
"""


def swollen(event: dict) -> list[dict]:
    """A unit's kernel as the dozen that it is, each with its launch, and with the operators that led to it."""
    number = 1000 * event["args"].get("correlation", 0)
    if event["name"] != "gemm":
        return [{**event, "args": {**event["args"], "correlation": number}}]
    length, begin = event["dur"] / KERNELS, event["ts"]
    found = []
    for i in range(KERNELS):
        at = {"ts": round(begin + i * length, 3), "dur": round(0.9 * length, 3)}  # the host leaves gaps
        args = {**event["args"], "correlation": number + i, "registers per thread": 168, "warps per SM": 7.757576}
        name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, 3>"
        found.append({**event, **at, "name": f"{name}{i}", "args": args})
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4000, "tid": 4000}
        found.append({**event, **at, **launch, "args": {"correlation": number + i, "cbid": 211}})
    for i in range(OPERATORS):
        at = {"ts": round(begin + i * length / 3, 3), "dur": 1.25, "pid": 4000, "tid": 4000}
        args = {"External id": i, "Record function id": 0, "Concrete Inputs": ["", "", "-1", "False"], "Ev Idx": i}
        args |= {"Input type": ["c10::BFloat16", "long int"], "Input Strides": [[4096, 1], []]}
        args["Input Dims"] = [[4096, 4096], [260 + i]]
        found.append(
            {**event, **at, "cat": "cpu_op", "name": f"aten::op{i}", "args": {**args, "Input Dims": [[4, 64]]}}
        )
    return found


def body(steps: int) -> str:
    """Events of a rank."""
    step = MadeStep([[2000] * UNITS] * MICROBATCHES, [4096] * MICROBATCHES, loading=500)
    events = trace(made([[step, step]] * steps, ahead=50), 0)["traceEvents"]
    return ",\n".join(json.dumps(one, indent=4) for event in events for one in swollen(event))


def test_traces_of_eight_ranks(benchmark, tmp_path):
    """In a process of its own, so that the peak memory is the reader's."""
    ranks, steps = (2, 1) if benchmark.disabled else (RANKS, STEPS)
    text, paths = body(steps), [tmp_path / f"rank{rank}.json" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        about = json.dumps({"backend": "nccl", "rank": rank, "world_size": ranks})
        path.write_text(f'{{"schemaVersion": 1, "distributedInfo": {about}, "traceEvents": [{text}]}}')
    command = [sys.executable, "-c", READ, *map(str, paths)]
    done = benchmark.pedantic(subprocess.run, args=(command,), kwargs={"capture_output": True, "check": True}, rounds=1)
    seen, read, pieces, seconds, peak = map(float, done.stdout.split())
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    benchmark.extra_info.update(megabytes=round(megabytes), seconds=round(seconds, 1), peak_gigabytes=round(peak, 3))
    print(f"{len(paths)} traces of {megabytes / ranks:,.0f} MB: {seconds:.1f} s, {peak:.2f} GB")
    assert (seen, read) == (ranks, steps)
    assert pieces > ranks * steps * MICROBATCHES * UNITS
    assert peak < 2
    assert benchmark.disabled or (megabytes > ranks * MEGABYTES * 0.9 and seconds < 120)
