"""The runs of a script that are held against each other, each in processes of its own."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from odc_engine.errors import EngineError
from odc_engine.packings.first_step import HOW, FirstStep
from odc_engine.packings.packing import AS_IT_IS, OTHERS, Packing
from odc_engine.packings.verdict import untold, verdict
from odc_engine.started import started
from odcsim.errors import InputError

WAYS = "have odc_engine.BalancedBatches cut it, or a trainer of odc_engine.trainers"
SHOWN = 12  # lines of what a script that failed has said last


def verify_packings(arguments: Sequence[str]) -> int:
    """`arguments`: the script and its own. 0 where gradients are equal, 1 where they are not."""
    script = arguments[0] if arguments else ""
    if not Path(script).is_file():
        raise InputError(f"no script '{script}'", fix=HOW)
    if started() is not None:
        raise InputError("--packings under torchrun, whose number of processes is to change", fix=HOW)
    base = _run(arguments, AS_IT_IS)
    found = verdict(
        base, {packing: _run(arguments, packing, base.weights) for packing in OTHERS if not untold(base, packing)}
    )
    if not found.held:
        raise InputError(f"{script} gave nothing to compare: {found.lines[-1]}", fix=WAYS)
    print("\n".join(f"{Path(script).name}: {line}" for line in found.lines), flush=True)
    return int(not found.ok)


def _run(arguments: Sequence[str], packing: Packing, weights: Mapping[str, Tensor] | None = None) -> FirstStep:
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        if weights is not None:
            torch.save(weights, Path(folder) / "weights")
        start = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(packing.processes)]
        told = f"{packing.processes},{packing.of},{int(packing.otherwise)}"
        command = [sys.executable, "-m", *start, "-m", "odc_engine.packings.first_step", folder, told, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if (refused := Path(folder) / "refused").is_file():
            raise InputError(refused.read_text(encoding="utf-8"))
        if done.returncode:
            print("\n".join(done.stdout.splitlines()[-SHOWN:]), file=sys.stderr)
            raise EngineError(f"{arguments[0]} failed on {packing}; its last lines are above")
        return FirstStep(**torch.load(Path(folder) / "step", weights_only=True))
