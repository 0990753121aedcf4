"""`odcsim report` and `odcsim trace-json`, as typed."""

import csv
import gzip
import json

import pytest

from odcsim import timeline as timelines
from odcsim.cli import Parser, report, trace_json
from odcsim.errors import InputError


def run(*argv):
    parser = Parser(prog="odcsim")
    commands = parser.add_subparsers(parser_class=Parser)
    report.add(commands)
    trace_json.add(commands)
    args = parser.parse_args(list(map(str, argv)))
    return args.run(args)


@pytest.fixture
def path(timeline, tmp_path):
    timelines.write(timeline, tmp_path / "t.npz")
    return tmp_path / "t.npz"


def test_report_writes_a_page_and_tells_its_size(path, tmp_path, capsys):
    run("report", path, path, "--html", tmp_path / "r.html")
    size = (tmp_path / "r.html").stat().st_size
    assert capsys.readouterr().out == f"{tmp_path / 'r.html'}: {size / 1e6:.1f} MB\n"
    assert "on-demand + lb-mini" in (tmp_path / "r.html").read_text()


def test_report_writes_a_picture_and_steps(path, tmp_path, capsys):
    run("report", path, path, "--svg", tmp_path / "x.svg", "--steps", tmp_path / "s.csv")
    told = capsys.readouterr().out
    assert f"{tmp_path / 'x.svg'}: " in told
    assert "s.csv: 12 steps of 2 timelines" in told
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    lines = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    assert [line["step"] for line in lines] == 2 * [f"{n}" for n in range(6)]
    assert {line["run"] for line in lines} == {f"on-demand + lb-mini ({path})"}


def test_a_report_of_nothing_is_refused(path):
    with pytest.raises(InputError, match="no output is given; give --html FILE, --svg FILE or --steps FILE"):
        run("report", path)


def test_a_trace_for_each_device_goes_into_a_folder(path, tmp_path, capsys):
    run("trace-json", path, "--per-device", tmp_path / "traces")
    assert "in 4 files, as torch.profiler writes them" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == [f"device-{d}.json.gz" for d in range(4)]


def test_trace_json_writes_the_minibatches_asked_for(path, tmp_path, capsys):
    run("trace-json", path, "-o", tmp_path / "t.json.gz", "--minibatches", "1-2")
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    assert {e["name"] for e in events if e.get("cat") == "minibatch"} == {"minibatch 1", "minibatch 2"}
    assert f"{len(events):,} events" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [("report", "--html"), ("trace-json", "-o")])
def test_a_file_that_is_no_timeline_is_refused_and_nothing_written(argv, tmp_path):
    (tmp_path / "t.npz").write_text("no")
    with pytest.raises(InputError, match="not a timeline; write one"):
        run(argv[0], tmp_path / "t.npz", argv[1], tmp_path / "out.json")
    assert [p.name for p in tmp_path.iterdir()] == ["t.npz"]


def test_a_window_that_is_none(path, tmp_path):
    with pytest.raises(InputError, match="--minibatches is '4-9'; give A-B with numbers from 0 to 5"):
        run("trace-json", path, "-o", tmp_path / "t.json", "--minibatches", "4-9")
