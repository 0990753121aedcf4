"""What `--help` of a command shows: first what one needs, and all of it with `--help-all`."""

import pytest

from odcsim.cli import COMMANDS, build_parser, main


def shown(capsys, monkeypatch, *words):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["compare", "diagnose"])
def test_the_short_help_is_one_screen(command, capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, command, "--help").splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("command", ["compare", "advise", "break-even", "rl", "balance", "diagnose"])
def test_every_option_is_in_the_whole_help(command, capsys, monkeypatch):
    told = shown(capsys, monkeypatch, command, "--help-all")
    [commands] = [action.choices for action in build_parser()._actions if hasattr(action, "_choices_actions")]
    assert {flag for a in commands[command]._actions for flag in a.option_strings if flag not in told} == set()


def test_every_command_has_a_help(capsys, monkeypatch):
    for command in COMMANDS:
        told = shown(capsys, monkeypatch, command.replace("_", "-"), "--help")
        assert told.startswith(f"usage: odcsim {command[:3]}")
        assert "None" not in told
