"""Why a run hangs, in at most five lines."""

from collections.abc import Sequence

from odcsim.answer import Answer
from odcsim.observed.flight import BACKWARD, FORWARD, REDUCE, CodeLine, GroupCall
from odcsim.observed.hang import ASIDE, DEFAULT, LOADS, Hang, aside
from odcsim.support.numbers import counted

NOTHING = "No rank waits in these dumps: every collective that one rank came to, all did."
AGAIN = "Write them while the run hangs, and of every rank."
FIRST = "If this is a run's first step, it may as well be the end of the step on some ranks, which"
FEW = 4  # ranks that are listed one by one
ASIDES = {"evaluation": ASIDE, "loader": LOADS}  # causes that a function's name tells
CAMPS = 3  # ranks that called different things and are told apart
ROLES = {
    FORWARD: ("gather", "a unit of the forward pass"),
    BACKWARD: ("gather", "a unit of the backward pass"),
    REDUCE: ("reduce", "gradients"),
}
# Each cause in short, as the first line ends, and the way out.
SHORT = {
    "dead": "a process that is gone, or whose dump is not here",
    "link": "a link or a device stands still",
    "microbatches": "ranks have unequal numbers of microbatches",
    "loader": "only some ranks are in {where}",
    "evaluation": "only some ranks are in {where}",
    "tower": "ranks do not run the same units of the model",
    "sizes": "ranks bring other sizes or types to it",
    "order": "ranks call the same collectives in another order",
    "silent": "nothing more was called there",
    "peers": "sends and receives are not compared here",
    "branch": "ranks are in other parts of the program",
    "unknown": "the dumps show no cause that is known here",
}
OUT = {
    "dead": "look at the end of that rank's log: out of memory, a signal, a node, or the program's own end.",
    "link": "set NCCL_DEBUG=INFO and test the links between these nodes; py-spy dump shows a host that stands still.",
    "microbatches": "as many microbatches on every rank in every step. 'odcsim check' finds such steps in a plan; a "
    "rank with too few can run one more whose loss is multiplied by 0.",
    "loader": "as many batches on every rank, and a timeout for the loader.",
    "evaluation": "call it on every rank, with as many batches; leave to one rank alone what calls no collective.",
    "tower": "run these units on every rank, on a dummy input whose output is multiplied by 0 where a rank has none.",
    "sizes": "pad to one size first, or gather sizes before what they are of.",
    "order": "one order of all collectives on every rank, whatever group they are in.",
    "silent": "look at that rank's log and data: has it ended, has it fewer batches, does its loader or a file system "
    "stand still? py-spy dump shows where it is.",
    "peers": "compare in which order these ranks send and receive, and to whom.",
    "branch": "call it on every rank or on none.",
    "unknown": "compare the programs of these ranks before that number.",
}


def answer(hang: Hang) -> Answer:
    about = f"{hang.ranks} ranks"
    if hang.call is None:
        return Answer("Hang", about, NOTHING, sentences=[AGAIN])
    sentences = [sign(hang), instead(hang), f"Way out: {OUT[hang.cause]}", doubts(hang)]
    return Answer("Hang", about, headline(hang), sentences=[line for line in sentences if line])


def headline(hang: Hang) -> str:
    call, waiting, rest = hang.call, hang.waiting, _rest(hang)
    assert call is not None
    why = SHORT[hang.cause].format(where=_aside(hang)[0])
    if hang.cause == "link":
        return f"All {counted(len(waiting), 'rank')} wait in {called(call)}{at(call.line)}: {why}."
    who = named(waiting).capitalize()
    missed = f", to which {named(rest)} did not come" if rest else ""
    return f"{who} {_verb(waiting, 'wait')} in {called(call)}{at(call.line)}{missed}: {why}."


def sign(hang: Hang) -> str:
    """What in the dumps shows the cause."""
    if hang.parted is None:
        return ""
    (x, y), here, there = hang.parted, hang.waiting, _rest(hang, gone=False)
    if hang.cause == "microbatches" and y is not None:
        (ahead, end), (behind, begun) = ((there, y), (here, x)) if x.role else ((here, x), (there, y))
        few, many = (0, 0) if hang.microbatches is None else hang.microbatches[:: -1 if x.role else 1]
        verb, what = ROLES[begun.role]
        after, for_one = (f" after {counted(few, 'microbatch')}", f" for microbatch {many}") if many else ("", "")
        words = f"{named(ahead)} went on to {called(end)}{at(end.line)}{after}"
        return f"Sign: {words}, and {named(behind)} {_verb(behind, verb)} {what}{for_one}."
    if hang.cause in ASIDES:
        where, waits = _aside(hang)
        inside, others = (here, there) if waits else (there, here)
        return f"Sign: the collective of {named(inside)} is called in {where}, that of {named(others)} is not."
    if y is None:
        last = hang.others[0].call
        if x.role != FORWARD or last is None or last.role != REDUCE:
            return ""
        words = f"the last call of {named(there)} is in a backward pass, and {named(here)} {_verb(here, 'begin')}"
        return f"Sign: {words} another forward pass; {named(there)} may have fewer microbatches or batches."
    if (x.group, x.number) != (y.group, y.number):
        return (
            f"Sign: {named(here)} called {called(x)}{at(x.line)} where {named(there)} called {called(y)}{at(y.line)}."
        )
    words = f"at number {x.number} of {grouped(x)} {named(here)} called {brief(x)} and {named(there)} {brief(y)}"
    left = f"; {named(hang.ahead)} left a unit out" if hang.cause == "tower" and hang.ahead else ""
    return f"Sign: {words}{left}."


def instead(hang: Hang) -> str:
    """What those called who did not come."""
    words = []
    for camp in hang.others[:CAMPS]:
        call, who = camp.call, named(camp.ranks)
        if call is None:
            words.append(f"{who} {'wrote no dump' if camp.gone else 'called nothing'}")
        elif not camp.waits:
            words.append(f"{who} called {called(call)}{at(call.line)} last, which is over")
        else:
            words.append(f"{who} {_verb(camp.ranks, 'wait')} in {called(call)}{at(call.line)}")
    more = f", and {len(hang.others) - CAMPS} more" if len(hang.others) > CAMPS else ""
    return f"Instead: {'; '.join(words)}{more}." if words else ""


def doubts(hang: Hang) -> str:
    x, y = hang.parted or (None, None)
    if hang.cause in ("evaluation", "branch") and x and y and bool(x.role) != bool(y.role):
        return f"{FIRST} have unequal numbers of microbatches ('odcsim check')."
    lacks = [] if hang.stacks else ["no stacks, so that no line of the program is known"]
    lacks += [] if hang.members else ["nothing of who is in this group, so that those who called in it are taken"]
    return f"The dumps have {' and '.join(lacks)}." if lacks else ""


def called(call: GroupCall) -> str:
    """`all_gather 188 of the default group`."""
    return f"{call.kind.lstrip('_')} {call.number} of {grouped(call)}" if not call.peer else call.kind


def grouped(call: GroupCall) -> str:
    if call.about == DEFAULT:
        return "the default group"
    return f"group {call.group}" + (f" ({call.about})" if call.about not in ("", "undefined") else "")


def brief(call: GroupCall) -> str:
    sizes = " + ".join("x".join(map(str, size)) or "1" for size in call.sizes[0][:2])
    return f"{call.kind.lstrip('_')}{f' of {sizes}' if sizes else ''}{at(call.line)}"


def at(line: CodeLine | None, *, bare: bool = False) -> str:
    """` (train.py:50 in main)`; `bare`: without the function."""
    if line is None:
        return ""
    file = line.file.replace("\\", "/").rpartition("/")[2]
    return f" ({file}:{line.line})" if bare else f" ({file}:{line.line} in {line.function})"


def named(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`, `ranks 0 to 6 and 8`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [word for run in runs for word in (map(str, run) if len(run) < 3 else [f"{run[0]} to {run[-1]}"])]
    if len(words) > FEW:
        words = [*words[:FEW], f"{len(words) - FEW} more"]
    listed = " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
    return f"rank{'' if len(ranks) == 1 else 's'} {listed}"


def _aside(hang: Hang) -> tuple[str, bool]:
    """The function that only some ranks are in, and whether those that wait are."""
    if hang.cause not in ASIDES or hang.parted is None:
        return "", False
    (x, y), names = hang.parted, ASIDES[hang.cause]
    line, last = aside(x, names), y or hang.others[0].call
    other = line or (aside(last, names) if last else None)
    return f"'{other.function}'{at(other, bare=True)}" if other else "another function", line is not None


def _rest(hang: Hang, *, gone: bool = True) -> tuple[int, ...]:
    """Who did not come."""
    return tuple(sorted(rank for camp in hang.others if gone or not camp.gone for rank in camp.ranks))


def _verb(ranks: Sequence[int], verb: str) -> str:
    return verb if len(ranks) != 1 else f"{verb}s"
