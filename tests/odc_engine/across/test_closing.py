"""A rank of another machine that evaluates longer than the others still finds their weights: close() waits for it."""

import pytest
from machine_script import COMMAND, made

pytestmark = pytest.mark.slow

PROGRAM = """
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
open(f"{__file__}{rank}", "w").write(str(seen))
"""


@pytest.mark.parametrize(
    ("late", "shape", "ends"), [(0, "4", "exits"), (3, "4", "destroys"), (0, "2x2", "exits"), (1, "4", "exits")]
)
def test_all_ranks_see_the_same_weights_and_end(machines, tmp_path, late, shape, ends):  # noqa: ARG001
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = made(*COMMAND, str(program), str(late), shape, ends)
    assert done.returncode == 0, done.stderr
    assert len({(tmp_path / f"train.py{rank}").read_text() for rank in range(4)}) == 1
