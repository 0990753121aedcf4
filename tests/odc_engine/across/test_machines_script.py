"""The script of the page on launching makes machines, too, and its program trains on them by torchrun."""

import re

import pytest
from machine_script import COMMAND, PAGE, made


def test_a_command_runs_on_each_machine(machines):  # noqa: ARG001 - which skips where there can be none
    done = made("2", "sh", "-c", "hostname; ls /proc | grep -c '^[0-9]'; cat /etc/hosts; exit $PET_NODE_RANK")
    assert {"machine0", "machine1", "10.77.0.1 machine0", "10.77.0.2 machine1"} <= set(done.stdout.splitlines())
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.slow
def test_the_pages_program_trains_over_them(machines, tmp_path):  # noqa: ARG001
    [program] = re.findall(r"^```python train.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program.replace("odc.close()", f"{ENDS}odc.close()"))
    done = made(*COMMAND, str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr
    told = [(tmp_path / f"ended{rank}").read_text() for rank in range(4)]
    assert len(set(told)) == 1


ENDS = """
told = [parameter.norm().full_tensor().item() for parameter in model.parameters()]
open(__file__.replace("train.py", f"ended{dist.get_rank()}"), "w").write(str(told))
"""
