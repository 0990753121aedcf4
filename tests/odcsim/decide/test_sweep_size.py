"""Sizes that nobody has at hand: sixteen thousand devices, ten billion samples, within a machine's memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scripts import ROOT

RUN = """
import re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from odcsim.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])  # getrusage tells of who forked it, too
sys.exit(code)
"""
GRID = """trace = "counts.csv"
model = "qwen3-8b"
gpu = "h100"
devices = 16384
minibatch = 4
minibatches = 4
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's here")
def test_many_devices_and_samples_stay_within_memory(tmp_path):
    lengths = np.arange(1, 65537)
    share = np.exp(-(np.log(lengths / 900) ** 2) / 1.6) / lengths
    counts = np.floor(share / share.sum() * 10**10).astype(np.int64)
    counts[0] += 10**10 - counts.sum()
    table = "\n".join(f"{length},{count}" for length, count in zip(lengths, counts, strict=True))
    (tmp_path / "counts.csv").write_text(f"length,count\n{table}\n")
    (tmp_path / "grid.toml").write_text(GRID)
    argv = ["sweep", str(tmp_path / "grid.toml"), "-o", str(tmp_path / "out.csv"), "--jobs", "1"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", RUN, *argv], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, peak = done.stdout.splitlines()
    assert first == f"1 point, 15 rows: {tmp_path / 'out.csv'}"
    assert int(peak) < 1 << 20  # kB
