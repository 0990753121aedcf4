"""The script of the page on launching makes machines, too, and its program trains on them by torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT

PAGE = (ROOT / "docs/howto/launch.md").read_text(encoding="utf-8")
[COMMAND] = re.findall(r"^docs/launch/machines.sh (.*) train.py$", PAGE, re.MULTILINE)


def made(*command: str) -> subprocess.CompletedProcess[str]:
    known = {"PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)}
    how = {"env": os.environ | known, "capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(["bash", ROOT / "docs/launch/machines.sh", *command], **how)


def test_a_command_runs_on_each_machine(machines):  # noqa: ARG001 - which skips where there can be none
    done = made("2", "sh", "-c", "hostname; ls /proc | grep -c '^[0-9]'; cat /etc/hosts; exit $PET_NODE_RANK")
    assert {"machine0", "machine1", "10.77.0.1 machine0", "10.77.0.2 machine1"} <= set(done.stdout.splitlines())
    assert done.returncode == 1
    assert done.stderr == ""


ENDS = """
told = [parameter.norm().full_tensor().item() for parameter in model.parameters()]
open(__file__.replace("train.py", f"ended{dist.get_rank()}"), "w").write(str(told))
"""


@pytest.mark.slow
def test_the_pages_program_trains_over_them(machines, tmp_path):  # noqa: ARG001
    [program] = re.findall(r"^```python train.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    ended_alike(tmp_path, program.replace("odc.close()", f"{ENDS}odc.close()"))


def ended_alike(folder, program, *arguments):
    """All ranks, with the same told."""
    (folder / "train.py").write_text(program)
    done = made(*COMMAND.split(), str(folder / "train.py"), *arguments)
    assert done.returncode == 0, done.stderr
    assert len({(folder / f"ended{rank}").read_text() for rank in range(4)}) == 1


EVALUATES = """
import sys
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from odc_engine import OnDemand
late, shape, ends = int(sys.argv[1]), tuple(map(int, sys.argv[2].split("x"))), sys.argv[3]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
for module in (*model, model):
    fully_shard(module, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
odc = OnDemand(model, timeout=60)
odc.attach(optimizer)
for _ in range(rank % 2 + 1):
    model(torch.ones(1, 64)).sum().backward()
optimizer.step()
optimizer.zero_grad()
for _ in range(20 if rank == late else 1):
    time.sleep(0.1)
    with torch.no_grad():
        seen = model(torch.ones(1, 64)).sum().item()
odc.close()
if ends == "destroys":
    dist.destroy_process_group()
open(__file__.replace("train.py", f"ended{rank}"), "w").write(str(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["0 4 exits", "3 4 destroys", "0 2x2 exits", "1 4 exits"])
def test_who_evaluates_longer_than_the_others_still_finds_their_weights(machines, tmp_path, how):  # noqa: ARG001
    """For close() waits for it. `how`: who does, over which mesh, and how programs end."""
    ended_alike(tmp_path, EVALUATES, *how.split())
