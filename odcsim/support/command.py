"""What `odcsim` and `odc_engine` do alike: a mistake is one line on stderr and exit status 2, an interrupt 130."""

import argparse
import contextlib
import errno
import sys
from collections.abc import Callable, Iterable, Mapping
from textwrap import fill
from typing import Any, NoReturn

from odcsim.errors import InputError
from odcsim.support.printing import PlainText, printable, silence, standing

# What a path that somebody gave can be wrong in, wherever it is looked at.
_PATHS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS)
# What a machine may have none left of.
_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_UNBROKEN: Any = {"break_on_hyphens": False, "break_long_words": False}


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one line on stderr, and `--help` fits on one screen.

    `--help` shows the usual options, each with its text up to a semicolon, and `--help-all` every option in full:
    `rare` marks the others where they are declared. `fill` adds arguments that are slow to make, once somebody asks for
    this command. `examples` are whole commands, of which the first is shown to who left out a required option. `doors`
    groups the names of commands under titles.
    """

    def __init__(
        self,
        *args: Any,
        fill: "Callable[[Parser], None] | None" = None,
        examples: Iterable[str] = (),
        doors: Mapping[str, Iterable[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._fill, self._doors = fill, doors
        self.examples = tuple(examples)
        self._whole = False  # whether help shows every option
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option and exit")

    def grouped(self, titles: Iterable[str], last: str) -> dict[str, Any]:
        """Groups of the help by their titles. What belongs to none of them comes last, under a title of its own."""
        groups = {title: self.add_argument_group(title) for title in titles}
        self._optionals.title = last
        self._action_groups.sort(key=lambda group: group is self._optionals)
        return groups | {last: self._optionals}

    def complete(self) -> "Parser":
        """The same, with all of its arguments."""
        if add := self._fill:
            self._fill = None
            add(self)
        return self

    def format_help(self) -> str:
        self.complete()
        below = next((a for a in self._actions if isinstance(a, argparse._SubParsersAction)), None)
        if below is not None:  # where the rest is
            rest = f"\n'{self.prog} {below.metavar} --help' shows the usual options, --help-all every one.\n"
        else:
            rest = "" if self._whole else f"\nall options: {self.prog} --help-all\n"
        if self._doors is not None and below is not None:  # every command in a line, by what one wants
            helps = {one.dest: one.help or "" for one in below._choices_actions}
            wide = max(map(len, helps))
            lines = [f"usage: {self.prog} COMMAND ...", "", fill(self.description or "", 78)]
            for title, names in self._doors.items():
                lines += ["", f"{title}:", *(f"  {name:{wide}}  {helps[name]}" for name in names)]
            return "\n".join(lines) + "\n" + rest
        usage, before = self.usage, [(action, action.help, action.metavar) for action in self._actions]
        if not self._whole:
            self.usage = fill(f"{self.prog} {self._shortest()}", 72, subsequent_indent=7 * " ", **_UNBROKEN)
            for action in self._actions:
                _shorten(action)
        try:
            return super().format_help() + self._examples() + rest
        finally:
            self.usage = usage
            for action, words, letter in before:
                action.help, action.metavar = words, letter

    def _examples(self) -> str:
        """Whole commands, broken as a shell reads them."""
        if not self.examples:
            return ""
        head, start = ("\n", "example: ") if len(self.examples) == 1 else ("\nexamples:\n", "  ")
        rows = [f"{start}{text}" for text in self.examples]
        rows = [fill(row, 80 if len(row) < 81 else 78, subsequent_indent="    ", **_UNBROKEN) for row in rows]
        return head + "".join(row.replace("\n", " \\\n") + "\n" for row in rows)

    def _shortest(self) -> str:
        """What has to be given; a choice among many by a word."""
        formatter, words = self._get_formatter(), []
        for action in self._actions:
            if not action.option_strings:
                word = formatter._format_args(action, str(action.metavar or action.dest))
                words.append(word if len(word) < 36 else action.dest.upper())
        words += [_flag(a) for a in self._actions if a.required and a.option_strings]
        for group in self._mutually_exclusive_groups:
            if group.required:
                words.append(f"({' | '.join(map(_flag, group._group_actions))})")
        return " ".join([*words, "[options]"])

    def _add_action(self, action: Any) -> Any:
        """Whatever writes a file can be told to write over somebody else's, in whatever group it is declared."""
        super()._add_action(action)
        if action.dest in ("output", "html") and "--force" not in self._option_string_actions:
            over = "write over a file that odcsim did not write"
            rare(self.add_argument("--force", action="store_true", help=over))
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        known = self.complete()._option_string_actions
        for word in words if self._subparsers is None else ():  # flags of commands below are theirs to refuse
            name = word.partition("=")[0]
            if not name.startswith("--"):
                continue
            starts = [flag for flag in known if flag.startswith(name)]
            if name == "--" or any(known[flag].nargs == argparse.REMAINDER for flag in starts):  # which takes the rest
                break
            if " " not in name and not starts:
                near = _nearest(name, known, 0.7)
                self.error(f"unknown flag {name:.60}" + (f"; did you mean {near}?" if near else self._for_example()))
        return super().parse_known_args(words, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """One of many is named by the nearest, not by all of them."""
        known = action.choices or ()
        if value not in known and (near := _nearest(str(value), map(str, known), 0.6)):
            raise argparse.ArgumentError(action, f"invalid choice: {value!r:.60}; did you mean {near!r}?")
        super()._check_value(action, value)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Where it cannot be written somebody is told, as of all that is printed; argparse would say nothing."""
        (file or sys.stderr).write(message)

    def _for_example(self) -> str:
        return f"; for example: {self.examples[0]}" if self.examples else ""

    def error(self, message: str) -> NoReturn:
        if " are required: " in message or message.endswith(" is required"):
            message += self._for_example()
        print(f"{self.prog}: error: {printable(message)}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(2)


def rare(action: argparse.Action) -> argparse.Action:
    """An option that `--help` leaves to `--help-all`."""
    action.rare = True  # type: ignore[attr-defined]
    return action


def _shorten(action: argparse.Action) -> None:
    """What the short help says of it, which leaves out what is rare, and what its last line says. Many names become
    prose, which can be broken."""
    if getattr(action, "rare", False) or isinstance(action, argparse._HelpAction | _HelpAll):
        action.help = argparse.SUPPRESS
        return
    action.help = (action.help or "").partition("; ")[0]
    names = ", ".join(map(str, action.choices or ()))
    if action.metavar is None and len(names) > 72:
        action.help, action.metavar = f"{action.help}: {names}", action.dest.upper()


def _nearest(word: str, known: Iterable[str], alike: float) -> str:
    """The one of these that was meant, if it is that alike; else none."""
    from difflib import get_close_matches  # which nobody waits for who types what there is

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=alike)), "")


def _flag(action: argparse.Action) -> str:
    values = f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper()
    return f"{action.option_strings[0]} {action.metavar or (values if len(values) < 36 else action.dest.upper())}"


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser._whole = True  # type: ignore[attr-defined]
        parser.print_help()
        parser.exit()


def status(name: str, run: Callable[[], int | None], *failures: type[Exception]) -> int:
    """Run a command and give its exit status. What is among `failures` is told in one line too, with status 1."""
    standing()
    failing: tuple[type[Exception], ...] = (InputError, *failures)
    stdout: Any = PlainText(sys.stdout)
    try:
        with contextlib.redirect_stdout(stdout):
            try:
                return int(run() or 0)
            finally:  # all that is printed has arrived, or is known not to, before the process ends
                sys.stdout.flush()
    except failing as error:
        problem, code = str(error), 2 if isinstance(error, InputError) else 1
    except BrokenPipeError:
        silence()  # the reader of what is printed has left (`odcsim ... | head`)
        return 0
    except MemoryError as error:
        problem, code = lacking(error), 1
    except ImportError as error:
        reason = next(iter(str(error).split("\n")), "")
        problem = f"{error.name or 'a library'} cannot be loaded ({reason}); install it anew, or free memory"
        code = 1
    except OSError as error:
        problem, code = _misplaced(error), 2
        if not problem:
            problem, code = lacking(error), 1
            if not problem:
                raise
            silence()
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    print(f"{name}: error: {printable(problem)}", file=sys.stderr)
    return code


def line_of(error: Exception) -> str:
    """The line that a command would print for it; nothing where it is a defect of ours."""
    return str(error) if isinstance(error, InputError) else _misplaced(error) or lacking(error)


def _misplaced(error: Exception) -> str:
    """What a path that somebody gave is wrong in."""
    if not isinstance(error, OSError) or error.errno not in _PATHS or error.filename is None:
        return ""
    return f"{error.filename!s:.200}: {error.strerror}; check the path"


def lacking(error: Exception) -> str:
    """What this machine has none left of, in words, where that is what an error says."""
    if isinstance(error, MemoryError):
        return f"too little memory ({str(error) or 'none is left'}); give it more, or ask for less"
    if not isinstance(error, OSError) or error.errno not in _SYSTEM:
        return ""
    where = f"{error.filename!s:.200}: " if error.filename is not None else ""
    return f"{where}{error.strerror}; see what this machine has left"
