"""A shell completes what the parser knows, and a command that lacks everything shows what it wants."""

import shutil
import subprocess

import pytest

from odcsim.cli import COMMANDS, build_parser, main
from odcsim.cli.completion import script

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


def completed(*words):
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _odcsim; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script()}\n{ask}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_commands_are_completed():
    assert set(completed("odcsim", "")) == {name.replace("_", "-") for name in COMMANDS}
    assert completed("odcsim", "comp") == ["compare", "completion"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("compare", "x", "--minibatch"), ["--minibatch", "--minibatches"]),
        (("compare", "x", "--executor", ""), ["analytic", "des"]),
        (("compare", "x", "--model", "r1-distill-qwen-1"), ["r1-distill-qwen-14b", "r1-distill-qwen-1.5b"]),
        (("compare", "x", "--gpu", "mi3"), ["mi300x", "mi325x", "mi355x"]),
        (("trace", "m"), ["make"]),
        (("balance", "plan", "--pri"), []),
        (("balance", "plan", "--balancer", "lb-m"), ["lb-micro", "lb-mini"]),
        (("balance", "plan", "--toke"), ["--tokenizer"]),
    ],
)
def test_flags_and_their_values_are_completed(words, offered):
    assert completed("odcsim", *words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_it_prints_the_script(shell, capsys):
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert script() in printed
    assert ("bashcompinit" in printed) == (shell == "zsh")


@pytest.mark.parametrize(
    "words",
    [
        "compare",
        "compare longalign --model qwen3-8b --gpu h100 --devices 8 --batch-size 4",
        "advise sharegpt --model qwen3-8b",
        "break-even",
        "rl rollouts.jsonl --model qwen3-1.7b --gpu h100 --devices 4",
    ],
)
def test_who_leaves_out_what_is_needed_sees_a_whole_command(words, capsys):
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    example = line.partition("for example: ")[2].partition(";")[0]
    assert build_parser().parse_args(example.split()[1:]).model
    if words == "compare":
        assert main([*example.split()[1:], "--minibatches", "2"]) == 0
        assert "lb-robust" in capsys.readouterr().out
