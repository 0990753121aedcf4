"""Reading speed, by `pytest tests/benchmarks --benchmark-only`.

Targets: five million rows of CSV in 6 s and 1 GB, a named trace in 20 ms.
"""

import resource
import subprocess
import sys

import numpy as np
import pytest

from odcsim.reading import load

ROWS = 5_000_000
READ = "import sys; from odcsim import load; print(load(sys.argv[1]).size)"


@pytest.mark.parametrize("columns", [1, 2])
def test_five_million_rows_of_csv(benchmark, tmp_path, columns):
    """A process of its own, start-up included, so that the peak memory is the reader's."""
    path, rows = tmp_path / "big.csv", ROWS if not benchmark.disabled else ROWS // 100
    block = np.random.default_rng(0).integers(1, 30_000, (rows // 50, columns)).tolist()
    body = "".join(",".join(map(str, row)) + "\n" for row in block)
    with path.open("w") as file:
        file.write("length\n" if columns == 1 else "prompt,response\n")
        for _ in range(50):
            file.write(body)
    done = benchmark.pedantic(
        subprocess.run, args=([sys.executable, "-c", READ, str(path)],), kwargs={"capture_output": True}, rounds=3
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    benchmark.extra_info["peak_gigabytes"] = round(peak, 3)
    assert int(done.stdout) == rows
    assert peak < 1
    assert benchmark.disabled or benchmark.stats["max"] < 6


def test_a_named_trace(benchmark):
    assert benchmark(load, "longalign").size == 10_000
    assert benchmark.disabled or benchmark.stats["median"] < 0.02
