"""What people mistype: one line that names it, exit status 2, nothing written, and no machine brought down."""

import json

import pytest

from odcsim.cli import main

SETTING = "--model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2".split()
LONG = "x" * 300 + ".csv"
WRONG = {
    "a name too long": (["trace", "info", LONG], "File name too long; check the path"),
    "a file for a folder": (["trace", "info", "lengths.csv/a.csv"], "lengths.csv/a.csv"),
    "a folder": (["trace", "info", "."], "."),
    "cut JSON": (["trace", "info", "cut.json"], "cut.json"),
    "nested too deep": (["trace", "info", "deep.json"], "deep.json"),
    "utf-16": (["trace", "info", "utf16.csv"], "utf16.csv"),
    "a unit": (["compare", "lengths.csv", *SETTING, "--max-tokens", "64Q"], "'64Q' is not a whole number from 0"),
    "no cutoff": (["trace", "info", "lengths.csv", "--cutoff", "0"], "'0' is not a whole number from 1"),
    "two limits": (["compare", "lengths.csv", *SETTING, "--truncate", "9", "--drop-over", "9"], "not allowed with"),
    "nothing left": (["compare", "lengths.csv", *SETTING, "--drop-over", "99"], "all samples are over 99 tokens"),
    "no device": (["compare", "lengths.csv", *SETTING, "--devices", "0"], "'0' is not a whole number from 1"),
    "too many minibatches": (
        ["compare", "lengths.csv", *SETTING, "--minibatches", "999999999999"],
        "999,999,999,999 minibatches of 4 samples take some 5,600,000 GB of memory; draw fewer, or raise",
    ),
    "too many devices": (["compare", "lengths.csv", *SETTING, "--devices", "999999999999"], "use fewer devices"),
    "another version": (["compare", "lengths.csv", *SETTING, "--profile", "profile.json"], "profile.json"),
    "a cut cluster": (["compare", "lengths.csv", *SETTING, "--cluster", "cut.toml"], "cut.toml"),
    "cut gz": (["fit", "cut.json.gz", "-o", "p.json"], "cut.json.gz"),
    "output too long": (["balance", "lengths.csv", *SETTING, "--balancer", "native", "-o", LONG], "File name too long"),
}


@pytest.mark.parametrize(("argv", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_one_line_and_leaves_nothing(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, range(100, 120))) + "\n")
    (tmp_path / "cut.json").write_text('[{"length": 5}, {"leng')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "utf16.csv").write_bytes("length\n5\n".encode("utf-16"))
    (tmp_path / "profile.json").write_text(json.dumps({"format": "odcsim profile", "version": 99}))
    (tmp_path / "cut.toml").write_text("nic_gbit_s = ")
    (tmp_path / "cut.json.gz").write_bytes(b"\x1f\x8b\x08\x00")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    try:
        code = main(argv)
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("odcsim")
    assert message in line
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "argv",
    [
        ["compare", "lengths.csv", *SETTING, "--html"],
        ["balance", "lengths.csv", *SETTING, "--balancer", "native", "-o"],
        ["simulate", "s.jsonl", "--sync", "on-demand", "--gpu", "a100", "-o"],
        ["fit", "measurements.json", "-o"],
        ["validate", "predicted.npz", "measured.npz", "--html"],
        ["report", "t.npz", "--html"],
        ["trace-json", "t.npz", "-o"],
        ["trace", "make", "longalign", "-o"],
    ],
    ids=lambda argv: argv[0],
)
def test_an_output_that_cannot_be_is_refused_before_inputs_are_read(argv, tmp_path, monkeypatch, capsys):
    """None of them exists."""
    monkeypatch.chdir(tmp_path)
    assert main([*argv, "nowhere/out.html"]) == 2
    assert capsys.readouterr().err == (
        "odcsim: error: nowhere/out.html: its folder does not exist; make nowhere first\n"
    )


def test_the_demo_refuses_before_it_compares(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.html").mkdir()
    assert main(["demo"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "odcsim: error: report.html: is a folder; name a file to write\n")
