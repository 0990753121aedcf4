"""A machine that is lost in the middle of a minibatch is named by the others within seconds, and all end."""

import os
import re
import subprocess
import sys
import time

import nets
import pytest
import torch
import torch.distributed as dist
from machine_pool import before, places
from machines import Machines
from own_loops import sharded

from odc_engine import OnDemand

pytestmark = pytest.mark.slow

PATIENCE = 4.0  # seconds that a silent peer is waited for
LIMIT = 60.0  # seconds in which all have ended, on a loaded machine, too: torch's own patience is half an hour


def training(rank, strike, mesh, place, victim, patience):
    """One good minibatch, then the fault in the next one."""
    model = sharded(mesh)
    odc = OnDemand(model, timeout=patience)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    owners = {"gather": odc.arena, "push": odc.arena, "settle": odc, "publish": odc, "all_reduce": dist}
    for number in range(8):
        if number == 1 and rank == victim:
            before(owners[place], place, lambda: (strike(), time.sleep(2.0)))
        for m in range(2):
            nets.loss(model, rank, m, number).backward()
        odc.settle()
        optimizer.step()
        optimizer.zero_grad()
        odc.publish()
    odc.close()


# `all_reduce`: of replicas, which have come to it. `patient`: killed in a loop that would wait long for the silent.
CASES = [
    tuple(row.split())
    for row in """
hybrid gather killed 1
hybrid push killed 0
hybrid publish killed 1
hybrid settle stopped 0
hybrid push unplugged 1
hybrid all_reduce killed 0
hybrid all_reduce stopped 1
hybrid all_reduce unplugged 1
full gather killed 0
full push killed 1
full publish stopped 0
full gather stopped 1
full settle unplugged 0
full push unplugged 1
full push patient 1
""".strip().splitlines()
]


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("mesh", "place", "fault", "machine"), CASES)
def test_the_others_name_it_and_end(machines, tmp_path, mesh, place, fault, machine):
    pool, machine = machines(2, 2), int(machine)
    lost = (0, 1) if machine == 0 else (2, 3)

    def strike(made):
        if fault == "unplugged":
            made.unplug(machine)
        elif fault == "stopped":
            made.machines[machine].stop()
        else:
            made.machines[machine].kill()

    how = {"fault": strike, "folder": tmp_path, "limit": LIMIT, "stopped": lost if fault == "stopped" else ()}
    fates = pool.fates(training, mesh, place, lost[1], 600.0 if fault == "patient" else PATIENCE, **how)
    assert pool.left == []
    survivors = [rank for rank in range(4) if rank not in lost]
    assert any(named(fates[rank]) <= set(lost) for rank in survivors)
    assert all(named(fates[rank]) for rank in survivors)
    if fault == "unplugged":  # who is cut off has lost the others
        assert all(fates[rank].code not in (None, 0) for rank in lost)
        assert any(named(fates[rank]) <= set(survivors) for rank in lost)


def named(fate) -> set[int]:
    assert fate.code not in (None, 0)
    told = re.search(r"PeerLost: devices? ([\d, ]+)", fate.words)
    assert told is not None
    return {int(device) for device in told[1].split(",")}


PROGRAM = """
import sys, time
from pathlib import Path
import torch.distributed as dist
from own_loops import sharded
from odc_engine import OnDemand
import nets

dist.init_process_group("gloo")
model = sharded("hybrid")
odc = OnDemand(model, timeout=4.0)
nets.loss(model, dist.get_rank(), 0).backward()
if dist.get_rank() >= 2:
    dist.all_reduce = lambda *_, **__: (Path(sys.argv[1]).touch(), time.sleep(60))  # the others are in it
odc.settle()
"""


def test_programs_end_by_themselves(machines, tmp_path):  # noqa: ARG001 - which skips where there are none
    """Not as processes of a pool do, which leave out what torch waits for at a program's end."""
    (tmp_path / "program.py").write_text(PROGRAM)
    running = []
    with Machines(2) as made:
        for place in places(made.machines, (2, 2)):
            known = os.environ | place.environment() | {"PYTHONPATH": os.pathsep.join(sys.path)}
            program = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "there")]
            command = made.command(place.machine.number, *program)
            running.append(subprocess.Popen(command, env=known, stderr=subprocess.PIPE, text=True))
        end = time.monotonic() + 120
        while not (tmp_path / "there").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        made.unplug(1)
        for rank, process in enumerate(running[:2]):
            _, words = process.communicate(timeout=LIMIT)
            assert process.returncode == 1
            assert f"PeerLost: device {rank + 2} " in words.splitlines()[-1]
    for process in running[2:]:
        process.communicate()
