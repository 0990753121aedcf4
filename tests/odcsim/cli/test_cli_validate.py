"""`odcsim validate`, as typed."""

import json
from dataclasses import replace

import pytest

from odcsim import timeline as timelines
from odcsim.cli import main


@pytest.fixture
def files(timeline, tmp_path):
    """A prediction, and a measurement whose seconds are 4 % longer."""
    blocks = tuple(replace(b, asked=1.04 * b.asked, had=1.04 * b.had) for b in timeline.blocks)
    real = replace(timeline, blocks=blocks, about=replace(timeline.about, executor="engine", emulated=False))
    timelines.write(timeline, tmp_path / "p.npz")
    timelines.write(real, tmp_path / "m.npz")
    return str(tmp_path / "p.npz"), str(tmp_path / "m.npz")


def test_it_prints_errors_and_the_worst_minibatches(files, capsys):
    assert main(["validate", *files]) == 0
    out = capsys.readouterr().out
    assert "-3.85%" in out
    assert "One run only" in out
    assert "worst minibatches:" in out
    assert "backward" in out


def test_json_alone_goes_to_stdout(files, capsys):
    assert main(["validate", *files, files[1], "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["makespan_error_median"] == pytest.approx(0.04 / 1.04)
    assert (content["runs"], content["noise_worst"]) == (2, 0)


@pytest.mark.parametrize(("tolerance", "code"), [("0.03", 1), ("0.05", 0)])
def test_a_tolerance_makes_it_fail_loudly(files, capsys, tolerance, code):
    assert main(["validate", *files, "--tolerance", tolerance]) == code
    err = capsys.readouterr().err
    assert ("FAILED: median makespan error 3.85% is over the tolerance of 3.00%; backward is furthest off" in err) == (
        code == 1
    )
    assert err.count("\n") == code


def test_another_schedule_is_refused_in_one_line(files, timeline, tmp_path, capsys):
    other = tmp_path / "o.npz"
    timelines.write(replace(timeline, about=replace(timeline.about, digest="0123")), other)
    assert main(["validate", files[0], str(other), "--html", str(tmp_path / "v.html")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("odcsim: error: measured timeline: schedule digest 0123 is not the prediction's")
    assert err.count("\n") == 1
    assert not (tmp_path / "v.html").exists()


def test_a_page_is_written(files, tmp_path):
    assert main(["validate", *files, "--html", str(tmp_path / "v.html")]) == 0
    assert "Predicted against measured" in (tmp_path / "v.html").read_text()
