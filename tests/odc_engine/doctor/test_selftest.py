"""`odc_engine doctor --gpu-selftest`, with and without a GPU."""

import json
import subprocess
import sys

import pytest
import shards

from odc_engine.cli import main
from odc_engine.doctor import abilities, selftest

KERNELS = ("write", "gather", "add", "total")


@pytest.mark.skipif(bool(abilities.gpus()[0]), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_ends_with_a_status_of_its_own(capsys):
    assert main(["doctor", "--gpu-selftest"]) == 3
    assert "no GPU that torch can use" in capsys.readouterr().out.partition("selftest:")[2]
    assert main(["doctor", "--gpu-selftest", "--json"]) == 3
    last = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (last["area"], last["ok"]) == ("selftest", False)


def answered(monkeypatch, code):
    """What it makes of a process that runs this in place of kernels."""
    run = subprocess.run
    monkeypatch.setattr(selftest, "SECONDS", 10)
    monkeypatch.setattr(selftest.subprocess, "run", lambda _, **how: run([sys.executable, "-c", code], **how))
    return selftest.examine(True)


def test_each_kernel_has_a_line(monkeypatch):
    right = dict.fromkeys(KERNELS, True) | {"add": False}
    found = answered(monkeypatch, f"print('loaded'); print({json.dumps(json.dumps(right))})")
    assert {each.name: each.ok for each in found} == right
    assert [(each.found, bool(each.advice)) for each in found if not each.ok] == [("wrong bytes", True)]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise RuntimeError('illegal access')", "RuntimeError: illegal access"),
        ("import os; os._exit(7)", "exit status 7"),
    ],
)
def test_a_process_that_fails_is_told_by_its_last_words(monkeypatch, code, told):
    [found] = answered(monkeypatch, code)
    assert (found.ok, found.found) == (False, told)


def test_a_hang_is_told(monkeypatch):
    def hangs(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(selftest.subprocess, "run", hangs)
    assert selftest.examine(True)[0].found == "no answer within 120 s"


def tried(_rank, wrong):
    transfers = shards.interpreted()
    with pytest.MonkeyPatch.context() as patch:
        if wrong:
            patch.setattr(transfers, wrong, lambda *_, **__: None)
        return selftest.kernels(300, "cpu")


@pytest.mark.skipif(not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt")
def test_kernels_that_move_no_bytes_are_seen(pools):
    assert pools(1).run(tried, "") == [dict.fromkeys(KERNELS, True)]
    for name in ("gather", "total"):
        assert pools(1).run(tried, name) == [dict.fromkeys(KERNELS, True) | {name: False}]
