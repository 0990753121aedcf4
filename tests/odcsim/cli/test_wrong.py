"""What people mistype: one line, exit status 2, nothing written. The lines are in tests/approved."""

import json

import pytest

from odcsim.cli import main

FILES = {
    "lengths.csv": b"length\n" + b"".join(b"%d\n" % length for length in range(100, 120)),
    "cut.json": b'[{"length": 5}, {"leng', "deep.json": b"[" * 100_000, "utf16.csv": "length\n5\n".encode("utf-16"),
    "cut.toml": b"nic_gbit_s = ", "cut.json.gz": b"\x1f\x8b\x08\x00",
    "profile.json": b'{"format": "odcsim profile", "version": 99}',
    # Of seconds that are all nothing no row leads another.
    "zero.json": json.dumps({
        "format": "odcsim profile", "version": 1, "model": "qwen3-0.6b", "gpu": "h100", "fidelity": "calibrated",
        "origin": "nothing", "forward": {}, "backward": {}, "head": {}, "embed": {},
    }).encode(),
    # None of these steers the terminal.
    "red.csv": b"\x1b[31mid,\x07text\n1,2\n", "title.csv": b"length\n\x1b]0;title\x07\n",
    "keys.json": b'{"\\u009b2J\\u202e": [1]}',
}  # fmt: skip
SETTING = "--model r1-distill-qwen-1.5b --gpu a100 --devices 2 --minibatch 2".split()
WRONG = [
    "trace info LONG", "trace info lengths.csv/a.csv", "trace info .", "trace info cut.json", "trace info deep.json",
    "trace info utf16.csv", "trace info lengths.csv --cutoff 0", "trace info longalgn",
    "trace make longalign --seed -1 -o a.csv", "trace make longalign -o a.xls",
    "trace make fixed:length=5 --column a -o a.csv", "trace info red.csv", "trace info title.csv",
    "trace info keys.json", "compre lengths.csv", "catalog list --quite-other", "catalog show h10",
    "fit cut.json.gz -o p.json", "balance lengths.csv SETTING --balancer native -o LONG",
    "balance lengths.csv SETTING --balancer lbmini -o p.jsonl", "report profile.json --html a.html",
    "trace-json profile.json -o a.json", "trace info EMPTY", "trace make EMPTY -o a.csv", "check EMPTY",
    "check cut.json --lengths EMPTY", "report lengths.csv EMPTY --html a.html", "report lengths.csv --html EMPTY",
    "compare longalign SETTING --profile EMPTY", "compare longalign SETTING --cluster EMPTY", "sweep EMPTY -o a.csv",
]  # fmt: skip
COMPARED = [
    "--max-tokens 64Q", "--truncate 9 --drop-over 9", "--drop-over 99", "--devices 0", "--epochs 0",
    "--minibatches 999999999999", "--devices 999999999999", "--profile profile.json", "--cluster cut.toml",
    "--modle y", "--minibach=3",
]  # fmt: skip
NOTHING = "lengths.csv --model qwen3-0.6b --devices 1 --profile zero.json"
WRONG += [
    f"compare {NOTHING} --minibatch 2", f"rl {NOTHING} --prompts 2 --rollouts 2", f"break-even {NOTHING} --minibatch 2",
    f"balance {NOTHING} --minibatch 2 --balancer lb-mini -o p.jsonl",
    "advise lengths.csv --model qwen3-0.6b --gpus h100 --devices 1 --global-batch 4 --profile zero.json",
]  # fmt: skip
WRONG += [f"compare lengths.csv SETTING {words}" for words in COMPARED]


@pytest.mark.parametrize("words", WRONG)
def test_a_mistake_is_one_line_and_leaves_nothing(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    replaced = {"SETTING": SETTING, "LONG": ["x" * 300 + ".csv"], "EMPTY": [""]}
    argv = [part for word in words.split() for part in replaced.get(word, [word])]
    try:
        code = main(argv)
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    (line,) = printed.err.splitlines()
    assert line.startswith("odcsim")
    assert line.isprintable()
    assert ("zero.json: no seconds of any compute" in line) == ("zero.json" in words)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
