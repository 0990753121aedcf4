"""`odc_engine doctor --gpu-selftest`: whether the kernels move the right bytes on this GPU.

A faulty kernel destroys its GPU context, so all of it runs in a process of its own, for at most two minutes.
"""

import json
import subprocess
import sys

from odc_engine.doctor.finding import Finding

SECONDS = 120  # to load torch, compile four kernels and run them
DEVICES, ELEMENTS = 4, 10_007  # of a shard, so that nothing is aligned
AREA, ADVICE = "selftest", "run it again with CUDA_LAUNCH_BLOCKING=1 and TORCH_SHOW_CPP_STACKTRACES=1"
NO_GPU = Finding(AREA, "kernels", "no GPU that torch can use", False, "only for GPUs; the CPU engine does without")


def examine(gpu: bool) -> list[Finding]:
    """Return a line for each kernel, or one that says why none has run."""
    if not gpu:
        return [NO_GPU]
    command = [sys.executable, "-m", "odc_engine.doctor.selftest"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [Finding(AREA, "kernels", f"no answer within {SECONDS} s", False, ADVICE)]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return [Finding(AREA, "kernels", last, False, ADVICE)]
    right: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
    return [
        Finding(AREA, name, "right bytes" if good else "wrong bytes", good, "" if good else ADVICE)
        for name, good in right.items()
    ]


def kernels(elements: int, device: str) -> dict[str, bool]:
    """Whether each kernel did what it should to shards of so many elements. Small whole numbers: sums are exact."""
    import torch

    from odc_engine.kernels import transfers

    arenas = [torch.zeros(elements, device=device) for _ in range(DEVICES)]
    place = transfers.Shards(transfers.table([arena.data_ptr() for arena in arenas], device), 1, 0, elements)
    whole = (torch.arange(DEVICES * elements, device=device) % 100).float()
    expected, out = whole.view(DEVICES, elements), torch.zeros_like(whole)
    right = {}
    transfers.write(place, whole, first=True)
    right["write"] = torch.equal(torch.stack(arenas), expected)
    transfers.gather(place, out, torch.float32)
    right["gather"] = torch.equal(out, whole)
    transfers.add(place, whole.bfloat16())
    right["add"] = torch.equal(torch.stack(arenas), 2 * expected)
    slots = torch.zeros(DEVICES, elements + 1, device=device)
    slots[:, :elements] = expected
    transfers.total(slots, DEVICES, elements, out[:elements])
    right["total"] = torch.equal(out[:elements], expected.sum(0))
    return right


if __name__ == "__main__":
    print(json.dumps(kernels(ELEMENTS, "cuda")))
