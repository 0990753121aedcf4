"""What `odc_engine doctor` says of this machine, and of one that lacks something."""

import importlib.metadata
import json
import os
import sys
from pathlib import Path

import pytest

from odc_engine.cli import main
from odc_engine.doctor import abilities as doctor


def found(name: str) -> doctor.Finding:
    return next(f for f in doctor.examine() if f.name == name)


def test_everything_has_a_name_of_its_own_and_advice_where_it_can_be_helped():
    findings = doctor.examine()
    assert len({(f.area, f.name) for f in findings}) == len(findings)
    assert {"machine", "package", "ability"} <= {f.area for f in findings}
    for finding in findings:
        assert finding.found
        assert not (finding.ok and finding.advice)
        assert finding.ok or finding.advice or finding.area == "package"


def test_versions_are_those_installed():
    for name in ("numpy", "odcsim"):
        assert found(name).found == importlib.metadata.version(name)


def test_this_machines_abilities_are_tried_out():
    if sys.platform == "linux":
        assert [found(name).ok for name in ("memfd", "OFD locks", "pidfd")] == [True] * 3
    pytest.importorskip("torch")
    assert found("FSDP2 hooks").ok


def test_no_descriptor_is_left_open():
    opened = Path("/proc/self/fd")
    if not opened.exists():
        pytest.skip("needs /proc")
    doctor.examine()  # whatever is imported keeps its own files open
    before = len(list(opened.iterdir()))
    doctor.examine()
    assert len(list(opened.iterdir())) == before


def test_without_torch_it_says_how_to_get_it(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "FSDP2 hooks" in line)
    assert line.split()[0] == "no"
    assert line.endswith("-> pip install 'odcsim[engine]' -c constraints.txt")


def test_a_torch_that_lacks_a_setter_is_named(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(doctor, "HOOKS", (*doctor.HOOKS, "set_something_of_tomorrow"))
    finding = found("FSDP2 hooks")
    assert (finding.ok, finding.found) == (False, "lacks set_something_of_tomorrow")
    assert finding.advice == "needs torch >= 2.11"


def test_every_setter_that_is_used_is_looked_for():
    """What the engine calls on a unit is what doctor looks for, but for the one that it can do without."""
    torch = pytest.importorskip("torch")
    import odc_engine
    from odc_engine.fsdp.missing_gradients import SETTER

    text = "".join(
        path.read_text() for path in Path(odc_engine.__file__).parent.glob("**/*.py") if path.stem != "abilities"
    )
    setters = [name for name in dir(torch.distributed.fsdp.FSDPModule) if name.startswith("set_")]
    used = {name for name in setters if f"fsdp.{name}(" in text} - {SETTER}
    assert used == set(doctor.HOOKS)


@pytest.mark.parametrize("missing", ["memfd_create", "pidfd_open"])
def test_another_system_lacks_abilities(monkeypatch, missing):
    monkeypatch.delattr(os, missing, raising=False)
    finding = found({"memfd_create": "memfd", "pidfd_open": "pidfd"}[missing])
    assert not finding.ok
    assert finding.advice.startswith("needs Linux")


def test_json_and_text_tell_the_same(capsys):
    assert main(["doctor", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == 1
    names = [finding["name"] for finding in printed["findings"]]
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in names)
    assert not capsys.readouterr().err
