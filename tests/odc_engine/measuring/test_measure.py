"""The bandwidth command, and the two things about transfers that its figures rest on."""

import json
from itertools import product

import pytest
import torch

from odc_engine import backends
from odc_engine.backends.threads.memory import Team, ThreadMemory
from odc_engine.cli import main
from odc_engine.errors import EngineError
from odc_engine.measuring import bandwidth as measure
from odc_engine.measuring.ground import CpuGround, same, ways
from odc_engine.memory.arena import CHUNK, Arena, UnitShape
from odcsim import plots

SIZE = 64 << 10
WAYS = ways(backends.USUAL)


@pytest.mark.parametrize("words", ["--devices 1", "--devices 3 --bytes 65536", "--bytes 0", "--devices 2;4"])
def test_bad_numbers_are_refused_in_a_line(capsys, words):
    try:
        code = main(["bandwidth", *words.split()])
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_the_command_measures_every_way_and_draws_them(capfd, tmp_path):
    page = tmp_path / "rates.html"
    assert main(["bandwidth", "--devices", "2", "--bytes", str(SIZE), "--json", "--html", str(page)]) == 0
    report = json.loads(capfd.readouterr().out)
    assert '"gather, lockstep"' in page.read_text(encoding="utf-8")
    assert [r["way"] for r in report["rates"]] == list(WAYS)
    for rate in report["rates"]:
        assert (rate["devices"], rate["bytes"]) == (2, SIZE)
        assert rate["gb_per_second"] == pytest.approx(SIZE / rate["seconds"] / 1e9)
    ceiling = next(r for r in report["rates"] if r["way"] == CpuGround.ceiling)
    assert ceiling["of_memcpy"] == 1
    assert all(r["of_memcpy"] == pytest.approx(ceiling["seconds"] / r["seconds"]) for r in report["rates"])


@pytest.mark.parametrize(("backend", "given"), [("shm", {}), ("cuda_ipc", {"CUDA_DEVICE_MAX_CONNECTIONS": "32"})])
def test_devices_on_gpus_get_queues_for_their_streams(monkeypatch, backend, given):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    found = []
    monkeypatch.setattr(measure.launch, "run", lambda *_, env: found.append(env) or 1)
    assert measure.rates(2, [SIZE], backends.measured()[backend]) == (1, [])
    assert found == [given]


def test_what_cannot_run_here_is_refused_before_anything_is_measured(monkeypatch):
    """Either of both that are measured."""
    monkeypatch.setattr(measure, "rates", lambda *_: pytest.fail("measured"))
    for refuses in (backends.USUAL, backends.USUAL.rival):
        with monkeypatch.context() as here:
            here.setattr(type(refuses), "needs", lambda self, _, one=refuses: refused() if self is one else None)
            with pytest.raises(EngineError):
                measure.bandwidth([2], [1 << 20], False)


def refused():
    raise EngineError("cannot run here")


def test_a_wrong_sum_is_no_measurement():
    same("push", torch.ones(3), torch.ones(3))
    with pytest.raises(EngineError):
        same("push", torch.ones(3), torch.tensor([1.0, 1.0, 2.0]))


def test_the_table_has_a_row_for_each_way_and_a_column_for_each_size():
    rates = [measure.Rate(way, 2, size, 1e-3, size / 1e6, 0.5) for size in (SIZE, 1 << 20) for way in WAYS]
    lines = measure.as_text(rates).splitlines()
    assert lines[0].split() == ["2", "devices,", "GB/s", "64", "KB", "1", "MB"]
    assert [line[:20].strip() for line in lines[1 : 1 + len(WAYS)]] == list(WAYS)
    assert lines[-1].split()[-2:] == ["50%", "50%"]


class Busy(ThreadMemory):
    """Somebody else holds the first chunk until it is asked for a second time."""

    def try_lock(self, *where):
        self.order.append(f"try {where[1]}")
        return len(self.order) > 1 and super().try_lock(*where)

    def lock(self, *where):
        self.order.append(f"wait {where[1]}")
        return super().lock(*where)


def test_a_push_does_other_chunks_while_one_is_held():
    memory = Busy(Team(1), 0)
    memory.order = []
    count = 3 * CHUNK // 4 - 5
    arena = Arena(memory, [UnitShape("unit", 0, count, torch.float32)], "locked")
    arena.push(0, torch.arange(count, dtype=torch.float32))
    assert memory.order == ["try 0", f"try {CHUNK}", f"try {2 * CHUNK}", "wait 0"]
    assert torch.equal(arena.gradients(0), torch.arange(count, dtype=torch.float32))


def test_the_figure_has_a_panel_for_each_number_of_devices():
    every = product(WAYS, (2, 4), (SIZE, 1 << 20))
    rates = [{"way": way, "devices": n, "bytes": size, "gb_per_second": 1.0} for way, n, size in every]
    drawn = plots.bandwidth(rates, "a <machine>")
    assert [note.text for note in drawn.layout.annotations] == ["2 devices", "4 devices"]
    assert "a &lt;machine&gt;" in drawn.layout.title.subtitle.text
    assert {trace.name for trace in drawn.data} < set(WAYS)  # every name that the figure knows is one that is measured
    assert {len(trace.x) for trace in drawn.data} == {2}


def test_the_figure_of_curves_shows_them_and_their_distances():
    drawn = plots.convergence({"collective": [3.0, 2.0], "deferred": [3.0, 2.5], "collective, order 1": [3.0, 2.25]})
    above = [t.name for t in drawn.data if t.yaxis == "y"]
    below = {t.name: list(t.y) for t in drawn.data if t.yaxis == "y2"}
    assert above == ["collective", "deferred"]
    assert below == {"deferred": [1e-9, 0.5], "collective, order 1": [1e-9, 0.25]}
