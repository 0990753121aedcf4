"""Logs of a user's own steps become a profile that gives their seconds back."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.cli import main
from odcsim.cluster import cluster_of
from odcsim.cost import Cost
from odcsim.errors import InputError
from odcsim.fitting.logs import Log, fit_log, read_log
from odcsim.profile import read
from odcsim.program import program
from odcsim.schedule import Schedule

MODEL = catalog.model("r1-distill-qwen-1.5b")


def logged(noise: float = 0.0, count: int = 60, seed: int = 0, model=MODEL) -> Log:
    rng = np.random.default_rng(seed)
    lengths = [tuple(rng.integers(100, 16000, rng.integers(1, 8)).tolist()) for _ in range(count)]
    exact = [0.2 + 8e-5 * sum(x) + 2e-9 * model.squares(np.array(x)).sum() for x in lengths]
    return Log(tuple(lengths), tuple((np.array(exact) * np.exp(noise * rng.standard_normal(count))).tolist()))


def save(log: Log, path):
    rows = (f"{';'.join(map(str, x))},{s!r}" for x, s in zip(log.lengths, log.seconds, strict=True))
    path.write_text("\n".join(["lengths,seconds", *rows]))
    return path


@given(st.lists(st.lists(st.integers(1, 10**6), min_size=1, max_size=4), min_size=1, max_size=4), st.floats(1e-6, 1e4))
def test_a_log_is_read_as_it_was_written(tmp_path_factory, lengths, seconds):
    log = Log(tuple(map(tuple, lengths)), (seconds,) * len(lengths))
    assert read_log(save(log, tmp_path_factory.mktemp("logs") / "l.csv")) == log


@pytest.mark.parametrize("name", ["r1-distill-qwen-1.5b", "gpt-oss-20b"])
def test_the_profile_gives_the_seconds_back(name):
    """Through the whole cost model: a schedule of one device that runs one logged microbatch; windows included."""
    model = catalog.model(name)
    log = logged(model=model)
    how = Cost(model, fit_log(log, model, "a100").profile, cluster_of(catalog.gpu("a100"), 1))
    steps = program(model.layers, 1, "collective")
    for lengths, seconds in list(zip(log.lengths, log.seconds, strict=True))[:10]:
        table = how.durations(steps, how.load([Schedule(lengths, ((tuple(range(len(lengths))),),))]))
        spent = sum(table[s.duration] for s in steps.steps if s.kind in ("compute", "overhead"))
        assert float(spent.item()) == pytest.approx(seconds, rel=1e-6)


def test_noise_and_a_few_steps_that_waited_do_not_move_it_far():
    log = logged(noise=0.02, count=100)
    waited = Log(log.lengths, tuple(s * (2 if i % 20 == 0 else 1) for i, s in enumerate(log.seconds)))
    calm, report = fit_log(log, MODEL, "a100"), fit_log(waited, MODEL, "a100")
    assert report.profile.forward.linear == pytest.approx(calm.profile.forward.linear, rel=0.05)
    assert calm.good
    assert len(report.unexplained) == 5
    assert all(re.search(r"\(-[45]\d%\)$", line) for line in report.unexplained)


def test_the_profile_says_what_a_log_cannot_tell():
    alone, sharded = (fit_log(logged(), MODEL, "a100", n, "steps.csv").profile for n in (1, 8))
    assert (alone.node_transfers_included, sharded.node_transfers_included) == (False, True)
    assert "waiting" not in alone.notes
    assert "waiting for other devices" in sharded.notes
    assert alone.origin == "60 measurements on 60 microbatches of steps.csv"
    assert alone.longest == max(max(x) for x in logged().lengths)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no column lengths and seconds; expected columns"),
        ("lengths,time\n1,2\n", "no column seconds"),
        ("lengths,seconds\n", "holds no microbatch"),
        ("lengths,seconds\n1;2,1\n1;x,1\n", r":3: lengths\[1\] is 'x'; expected whole numbers"),
        ("lengths,seconds\n,1\n", r":2: lengths\[0\] is ''"),
        ("lengths,seconds\n1;-5,1\n", r":2: lengths\[1\] is '-5'"),
        ("lengths,seconds\n1;99999999999,1\n", r":2: lengths\[1\] is '99999999999'"),
        ("lengths,seconds\n5,0\n", ":2: seconds is '0'; expected a number above zero"),
        ("lengths,seconds\n5,nan\n", ":2: seconds is 'nan'"),
        ("lengths,seconds\n5\n", ":2: seconds is ''"),
    ],
)
def test_a_wrong_line_is_named(text, problem, tmp_path):
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        read_log(tmp_path / "l.csv")
    assert "\n" not in str(caught.value)


def test_lists_of_lengths_as_programs_print_them_are_read(tmp_path):
    (tmp_path / "l.csv").write_text('\ufeffSeconds, Lengths\n1.5,"[512, 77]"\n')
    assert read_log(tmp_path / "l.csv") == Log(((512, 77),), (1.5,))


def fitted(*argv: str) -> int:
    return main(["fit", *map(str, argv)])


def test_the_command_writes_a_profile_and_says_what_it_is(tmp_path, capsys):
    path = save(logged(noise=0.01), tmp_path / "l.csv")
    assert fitted(path, "--model", MODEL.name, "--gpu", "a100", "-o", tmp_path / "p.json") == 0
    out = capsys.readouterr().out
    assert "microbatch: constant 0.2" in out
    assert "valid for samples up to" in out
    assert read(tmp_path / "p.json") == fit_log(read_log(path), MODEL, "a100", 1, "l.csv").profile


def test_the_command_does_not_call_a_bad_fit_good(tmp_path, capsys):
    log = logged(noise=0.01)
    path = save(Log(log.lengths, (3 * log.seconds[0], *log.seconds[1:])), tmp_path / "l.csv")
    assert fitted(path, "--model", MODEL.name, "--gpu", "a100", "-o", tmp_path / "p.json") == 0
    printed = capsys.readouterr()
    assert "NOT EXPLAINED: microbatch of" in printed.out
    assert printed.err == "odcsim fit: poor fit: it does not explain 1 measurement\n"


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (("l.csv", "--gpu", "a100"), "--model is needed for a log and for traces"),
        (("l.csv", "--model", "r1-distill-qwen-1.5b"), "--gpu is needed for a log and for traces"),
        (("no.csv", "--model", "r1-distill-qwen-1.5b", "--gpu", "a100"), "no.csv: no such file"),
        (("no.csv", "--trace", "longalign", "--minibatch", "2"), "no.csv: no such file; give a log"),
        (("no.jsonl", "--trace", "longalign"), "no.jsonl: no such file; give a log"),
        (("m.json", "--gpu", "a100"), "--gpu given for measurements"),
        (("no.json", "--gpu", "a100"), "no.json: no such file; give a log"),
        (("logs", "--trace", "longalign"), "logs: is a folder; name a file inside it"),
    ],
)
def test_the_command_names_what_is_missing(argv, problem, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l.csv").write_text("lengths,seconds\n512,1\n")
    (tmp_path / "m.json").write_text("{}")
    (tmp_path / "logs").mkdir()
    assert fitted(*argv, "-o", "p.json") == 2
    assert f"error: {problem}" in capsys.readouterr().err.replace("l.csv: ", "").replace("m.json: --", "--")
    assert not (tmp_path / "p.json").exists()


def test_one_line_for_lengths_that_cannot_be_told_apart(tmp_path, capsys):
    path = save(Log(((512,),) * 9, (1.0,) * 9), tmp_path / "l.csv")
    assert fitted(path, "--model", MODEL.name, "--gpu", "a100", "-o", tmp_path / "p.json") == 2
    err = capsys.readouterr().err
    assert "microbatch: the measurements do not tell the coefficients apart" in err
    assert not (tmp_path / "p.json").exists()
