"""What a limit of tokens would lose is told by every command that reads lengths."""

import pytest

from odcsim.cli import main


@pytest.mark.parametrize(
    "command",
    [["compare", "--minibatches", "2"], ["balance", "--balancer", "lb-mini", "--minibatches", "2"], ["advise"],
     ["trace", "make"], ["trace", "info"]],
    ids=" ".join,
)  # fmt: skip
def test_every_command_that_reads_lengths_tells_what_a_cutoff_loses(tmp_path, capsys, command):
    (tmp_path / "a.csv").write_text("length\n" + "10\n" * 30 + "100\n" * 10)
    ask = ["--model", "qwen3-0.6b", "--devices", "2"]
    more = {
        "compare": [*ask, "--gpu", "a100", "--minibatch", "2"],
        "balance": [*ask, "--gpu", "a100", "--minibatch", "2", "-o", str(tmp_path / "s.jsonl")],
        "advise": [*ask, "--gpus", "a100", "--global-batch", "4"],
        "make": ["--samples", "40", "-o", str(tmp_path / "b.csv")],
        "info": [],
    }
    name = command[1] if command[0] == "trace" else command[0]
    head = command[:2] if command[0] == "trace" else command[:1]
    given = [*head, str(tmp_path / "a.csv"), *command[len(head) :], *more[name], "--cutoff", "40"]
    assert main(given) == 0
    told = capsys.readouterr()
    words = told.out if name == "info" else told.err
    assert "over 40 tokens: 10 samples (25.00%)" in words
    assert "dropped, 1,000 tokens (76.92% of all)" in words
