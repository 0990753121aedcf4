"""NVIDIA's checker over the kernels on small tensors: no access beside what a kernel may touch."""

import os
import subprocess
import sys

from odc_engine.doctor.probes.base import FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.needs import sanitizer

WRONG = 9  # exit status where an access was wrong
N = 1_003  # elements of a shard
# An allocator that hands out pieces of larger memory would hide what is read beside a tensor.
PLAIN = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
CODE = f"from odc_engine.doctor.probes.kernels import checked; right = checked({N}, 'cuda'); print(right)"


def probe(hearing: Hearing) -> Answer:
    found = {}
    for tool in ("memcheck", "racecheck"):
        command = [sanitizer(), "--tool", tool, "--error-exitcode", str(WRONG), sys.executable, "-c", CODE]
        found[tool] = subprocess.run(command, env=os.environ | PLAIN, check=False).returncode
        hearing.note(**found)
    wrong = [f"{tool} ends with {code}" for tool, code in found.items() if code]
    return Answer(FAILED if wrong else OK, "; ".join(wrong) or f"nothing wrong by {' and '.join(found)}")
