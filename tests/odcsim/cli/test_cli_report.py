"""`odcsim report` and `odcsim trace-json`, as typed."""

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


def test_a_page_needs_a_name(path, capsys):
    with pytest.raises(SystemExit):
        run("report", path)
    assert "--html" in capsys.readouterr().err
