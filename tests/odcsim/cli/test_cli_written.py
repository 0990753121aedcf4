"""Every option of every command that names a file: those that write pass by one guard, before any work."""

import pytest
from commands import commands, line, main, name_of, takes_text

WRITES = {"-o", "--output", "--html", "--svg", "--steps", "--per-device"}
READS = {
    "trace", "source", "sources", "plan", "schedule", "timeline", "timelines", "predicted", "measured", "name", "rows",
    "grid", "--trace", "--lengths", "--against", "--recipe", "--model", "--gpu", "--gpus", "--profile", "--cluster",
    "--tokenizer", "--script",
}  # fmt: skip
WORDS = {"--column", "--images", "--balancer", "--trainer", "--sweep-max-tokens", "--dask", "--minibatches", "--price"}
COMMANDS = commands()
OUTPUTS = [
    (command, name_of(action))
    for command, parser in COMMANDS.items()
    for action in parser._actions
    if takes_text(action) and name_of(action) in WRITES
]
MINE = "# mine\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(argv, path, capsys):
    """In one line, with the file as it was, and without a look at what else was given, none of which is there."""
    assert main(argv) == 2, argv
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1), argv
    assert path.read_text() == MINE
    return told.err


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_known_of_every_option_whether_it_writes(command):
    options = {name_of(action) for action in COMMANDS[command]._actions if takes_text(action)}
    assert options - WRITES - READS - WORDS == set()


def test_no_option_is_of_two_kinds_or_gone():
    known = {name_of(action) for parser in COMMANDS.values() for action in parser._actions if takes_text(action)}
    assert len(WRITES | READS | WORDS) == len(WRITES) + len(READS) + len(WORDS)
    assert known >= WRITES | READS | WORDS


@pytest.mark.parametrize(("command", "output"), OUTPUTS, ids=map(" ".join, OUTPUTS))
def test_nothing_is_written_over_a_file_of_somebody_elses(command, output, folder, capsys):
    for ending in ("", ".txt", ".csv", ".json", ".jsonl", ".html", ".svg", ".npz", ".npy", ".parquet", ".json.gz"):
        (path := folder / f"mine{ending}").write_text(MINE)
        argv = line(command, COMMANDS[command], {output: [path.name]})
        assert path.name in refused(argv, path, capsys)


@pytest.mark.parametrize(("command", "output"), OUTPUTS, ids=map(" ".join, OUTPUTS))
def test_nothing_is_written_over_what_the_same_command_reads_whatever_it_is_told(command, output, folder, capsys):
    (path := folder / "mine").write_text(MINE)
    parser = COMMANDS[command]
    for action in parser._actions:
        if takes_text(action) and (name := name_of(action)) in READS:
            given = {output: [path.name], name: [path.name]}
            more = ["--force"] if "--force" in parser._option_string_actions else []
            told = refused([*line(command, parser, given), *more], path, capsys)
            assert "is what this command reads" in told or "is there already" in told, name


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"])
def test_nothing_is_written_over_what_is_read_in_a_folder(name, folder, capsys):
    (path := folder / name).write_text(MINE)
    for option in ("--tokenizer", "--model"):
        argv = line("odcsim balance", COMMANDS["odcsim balance"], {"-o": [name], option: ["."]})
        assert "is what this command reads" in refused([*argv, "--force"], path, capsys)


def test_the_page_of_the_demo_takes_nobodys_place(folder, capsys):
    (path := folder / "report.html").write_text(MINE)
    told = "report.html: is there, and is not a page that odcsim wrote; move it away"
    assert told in refused(["odcsim", "demo"], path, capsys)
