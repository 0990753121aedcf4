"""A sweep over processes, through a kill that nothing can catch, and over a real Dask cluster on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts import ROOT

import odcsim
from odcsim.cli import main

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are looked for in Linux's /proc")
GRID = {
    "trace": "uniform:min=20,max=2000,samples=400", "model": ["tiny", "r1-distill-qwen-1.5b"], "gpu": "a100",
    "devices": [2, 4, 8], "minibatch": [2, 3, 4, 5], "minibatches": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "grid.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in GRID.items()))
    return path


@pytest.fixture(scope="module")
def whole(grid, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out.csv"
    odcsim.sweep(grid, output=output)
    return output.read_bytes()


def started(grid, output) -> subprocess.Popen:
    command = [sys.executable, "-m", "odcsim", "sweep", str(grid), "-o", str(output), "--jobs", "2"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def done(kept: Path) -> int:
    return kept.read_bytes().count(b"\n") - 1 if kept.exists() else 0


def workers_of(pid: int) -> list[int]:
    """Not what tracks resources for them."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_at_work(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@LINUX
def test_whoever_is_killed_leaves_what_is_done_and_the_rest_goes_on_to_the_same_bytes(grid, whole, tmp_path):
    """First a worker, then the command itself, whose workers then end."""
    output, kept = tmp_path / "out.csv", tmp_path / "out.csv.points"
    for least in (2, 6):
        run = started(grid, output)
        while done(kept) < least and run.poll() is None:
            time.sleep(0.02)
        workers = workers_of(run.pid)
        os.kill(workers[0] if least == 2 else run.pid, signal.SIGKILL)
        told = run.communicate()[0]
        assert run.returncode == (1 if least == 2 else -signal.SIGKILL)
        assert sum(line.startswith("odcsim: error: ") for line in told.splitlines()) == (least == 2)
        assert least <= done(kept) < 24
        assert not output.exists()
        deadline = time.monotonic() + 60
        while any(map(is_at_work, workers)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(workers) >= 2
        assert not any(map(is_at_work, workers))
    assert "24 points, 360 rows" in started(grid, output).communicate()[0]
    assert output.read_bytes() == whole


@pytest.fixture(scope="module")
def cluster():
    """A scheduler and two workers, each a process."""
    distributed = pytest.importorskip("distributed", reason="needs distributed: pip install 'odcsim[dask]'")
    words = {"threads_per_worker": 1, "processes": True, "dashboard_address": None, "silence_logs": 50}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with distributed.LocalCluster(n_workers=2, **words) as local:
            yield local


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of what a cluster of others warns of when it is taken down
def test_two_workers_of_dask_give_the_same_rows(grid, whole, cluster, tmp_path):
    import distributed

    output = tmp_path / "out.csv"
    assert main(["sweep", str(grid), "-o", str(output), "--dask", cluster.scheduler_address]) == 0
    assert output.read_bytes() == whole
    with distributed.Client(cluster, set_as_default=False) as client:
        assert odcsim.sweep(grid, executor=client.get_executor(pure=False)) == odcsim.sweep(grid)
        assert len(client.scheduler_info()["workers"]) == 2


def test_without_dask_or_its_scheduler_nothing_is_written(grid, tmp_path, monkeypatch):
    words = ["sweep", str(grid), "-o", str(tmp_path / "out.csv"), "--dask"]
    if find_spec("distributed"):
        monkeypatch.setattr("odcsim.decide.sweep.PATIENCE", "1s")
        for where in ("tcp://127.0.0.1:1", "nowhere"):
            assert main([*words, where]) == 2
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main([*words, "tcp://127.0.0.1:1"]) == 2
    assert list(tmp_path.iterdir()) == []
