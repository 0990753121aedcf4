"""Whatever whole number a command takes: of a huge one it is refused in a line, or runs in bounded memory and time."""

import os
import resource
import sys
from pathlib import Path

import pytest
from every_command import commands, main, name_of

from odcsim import schedule
from odcsim.option import Option
from odcsim.program import MOST_STEPS, program
from odcsim.support import budget
from odcsim.support.budget import limit

SETTING = "--model tiny --gpu a100 --devices 2".split()
BATCH = "--minibatch 2 --minibatches 2".split()
STARTS = {
    "odcsim advise": ["l.csv", "--model", "tiny", "--gpus", "a100", "--devices", "2", *BATCH],
    "odcsim audit": ["trl sft --model_name_or_path nano", "--lengths", "l.csv", "--gpu", "a100", "--devices", "2"],
    "odcsim compare": ["l.csv", *SETTING, *BATCH],
    "odcsim break-even": ["l.csv", *SETTING, *BATCH[:2]],
    "odcsim rl": ["longalign", *SETTING, "--prompts", "2", "--rollouts", "2", "--steps", "2"],
    "odcsim trace info": ["l.csv"],
    "odcsim trace make": ["longalign", "-o", "made.csv"],
    "odcsim balance": ["l.csv", *SETTING, *BATCH, "--balancer", "native", "-o", "made.jsonl"],
    "odcsim check": ["s.jsonl"],
    "odcsim simulate": ["s.jsonl", "--sync", "on-demand", "--gpu", "a100", "-o", "made.npz"],
    "odcsim fit": ["log.csv", "--trace", "l.csv", *SETTING, *BATCH[:2], "-o", "made.json"],
    "odcsim diagnose": ["log.csv", "--trace", "l.csv", *SETTING, *BATCH[:2]],
    "odcsim sweep": ["none.toml", "-o", "made.csv"],
    "odcsim flags": ["trl", "none.json"],
    "odcsim explore": ["none.csv", "--no-open"],
    "odc_engine doctor": ["--model", "tiny"],
    "odc_engine run": ["s.jsonl", "--sync", "on-demand", "-o", "made.npz"],
    "odc_engine verify": ["s.jsonl", "--sync", "on-demand"],
    "odc_engine profile": ["-o", "made.json"],
    "odc_engine bandwidth": [],
}
HUGE = ("999999999999", "1000000000", "999999995904")
EITHER = {"--minibatch": "--global-batch", "--global-batch": "--minibatch"}


def counts(action):
    if action.nargs == 0 or action.choices is not None:
        return False
    of = getattr(action.type, "__self__", None)
    return of.type is int if isinstance(of, Option) else takes(action, "1") and not takes(action, "1.5")


def takes(action, text):
    try:
        return "1" in f"{action.type(text)}"
    except Exception:
        return False


COMMANDS = commands()
COUNTS = [(command, name_of(a)) for command, parser in COMMANDS.items() for a in parser._actions if counts(a)]
OPTIONS = [(command, name) for command, name in COUNTS if name != "--seed"]  # from which one counts, but never to
QUICK = {"--steps", "--prompts", "--rollouts", "--samples", "--minibatches", "--bytes", "--port", "--lora"}
DOOR = [(command, name) for command, name in OPTIONS if name in QUICK and command != "odcsim simulate"]
REST = [option for option in OPTIONS if option not in DOOR]


@pytest.fixture
def folder(tmp_path, monkeypatch, schedules):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l.csv").write_text("length\n5\n6\n7\n8\n")
    (tmp_path / "log.csv").write_text("step,seconds\n1,2\n2,2\n3,2\n4,2\n")
    schedule.write(schedules, tmp_path / "s.jsonl")
    return tmp_path


def ended(argv):
    """Its status and stderr, of a process of its own that may take half a gigabyte more and seconds of a core."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        code = 99
        try:
            for number, name in ((0, os.devnull), (1, os.devnull), (2, "err")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w") for n in range(3))
            limit(1 << 29)
            resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
            code = main(argv)
            sys.stderr.flush()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, Path("err").read_text()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "name"), DOOR, ids=map(" ".join, DOOR))
def test_a_huge_count_is_refused_at_the_door_or_bounded(command, name):
    start = list(STARTS[command])
    for other in (name, EITHER.get(name, name)):
        if other in start:
            at = start.index(other)
            del start[at : at + 2]
    for huge in HUGE if name != "--bytes" else HUGE[::2]:  # a gigabyte is one that some machines measure with
        Path("err").unlink(missing_ok=True)
        for made in Path().glob("made.*"):
            made.unlink()
        code, told = ended([*command.split(), *start, name, huge])
        fine = (0, 1) if command == "odcsim audit" else (0,)  # 1: what was asked about would not run
        assert code in (*fine, 2), (huge, told)
        assert code in fine or len(told.splitlines()) == 1, told


@pytest.mark.drawn(20)
@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "name"), REST, ids=map(" ".join, REST))
def test_so_is_every_other_one(command, name):
    test_a_huge_count_is_refused_at_the_door_or_bounded(command, name)


def test_programs_are_remembered_by_their_steps_and_not_by_their_number():
    """The last one however large; all is forgotten when told."""
    made = [program(40, count, "collective") for count in range(200, 210)]
    assert program(40, 209, "collective") is made[-1]
    assert program(40, 200, "collective") is not made[0]
    assert len(made[-1].steps) < MOST_STEPS < sum(len(one.steps) for one in made)
    asked = []
    noted = budget.memoize(10, lambda *given: given[1])(lambda size: asked.append(size) or [size])
    assert [noted(n) for n in (4, 4, 6, 4, 8, 6, 99, 99)] == [[4], [4], [6], [4], [8], [6], [99], [99]]
    assert asked == [4, 6, 8, 6, 99]
    budget.forget()
    assert noted(99) == [99]
    assert asked[-2:] == [99, 99]
