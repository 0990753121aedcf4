"""What people mistype: one line, exit status 2, nothing written. The lines are in tests/approved."""

import json

import pytest

from odcsim.cli import main

SETTING = "--model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2"
WRONG = """
trace info LONG
trace info lengths.csv/a.csv
trace info .
trace info cut.json
trace info deep.json
trace info utf16.csv
trace info lengths.csv --cutoff 0
trace info longalgn
trace make longalign --seed -1 -o a.csv
trace make longalign -o a.xls
trace make fixed:length=5 --column a -o a.csv
trace info red.csv
trace info title.csv
trace info keys.json
compare lengths.csv SETTING --max-tokens 64Q
compare lengths.csv SETTING --truncate 9 --drop-over 9
compare lengths.csv SETTING --drop-over 99
compare lengths.csv SETTING --devices 0
compare lengths.csv SETTING --epochs 0
compare lengths.csv SETTING --minibatches 999999999999
compare lengths.csv SETTING --devices 999999999999
compare lengths.csv SETTING --profile profile.json
compare lengths.csv SETTING --cluster cut.toml
compare lengths.csv SETTING --modle y
compare lengths.csv SETTING --minibach=3
compre lengths.csv
catalog list --quite-other
catalog show h10
fit cut.json.gz -o p.json
balance lengths.csv SETTING --balancer native -o LONG
balance lengths.csv SETTING --balancer lbmini -o p.jsonl
report profile.json --html a.html
trace-json profile.json -o a.json
trace info EMPTY
trace make EMPTY -o a.csv
check EMPTY
check cut.json --lengths EMPTY
report lengths.csv EMPTY --html a.html
report lengths.csv --html EMPTY
compare longalign SETTING --profile EMPTY
compare longalign SETTING --cluster EMPTY
sweep EMPTY -o a.csv
"""


@pytest.mark.parametrize("words", WRONG.strip().splitlines())
def test_a_mistake_is_one_line_and_leaves_nothing(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, range(100, 120))) + "\n")
    (tmp_path / "cut.json").write_text('[{"length": 5}, {"leng')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "utf16.csv").write_bytes("length\n5\n".encode("utf-16"))
    (tmp_path / "red.csv").write_text("\x1b[31mid,\x07text\n1,2\n")  # none of which steers the terminal
    (tmp_path / "title.csv").write_text("length\n\x1b]0;title\x07\n")
    (tmp_path / "keys.json").write_text('{"\\u009b2J\\u202e": [1]}')
    (tmp_path / "profile.json").write_text(json.dumps({"format": "odcsim profile", "version": 99}))
    (tmp_path / "cut.toml").write_text("nic_gbit_s = ")
    (tmp_path / "cut.json.gz").write_bytes(b"\x1f\x8b\x08\x00")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    replaced = {"SETTING": SETTING, "LONG": "x" * 300 + ".csv"}
    argv = [part for word in words.split() for part in replaced.get(word, word).split()]
    argv = ["" if word == "EMPTY" else word for word in argv]
    try:
        code = main(argv)
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    (line,) = printed.err.splitlines()
    assert line.startswith("odcsim")
    assert line.isprintable()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
