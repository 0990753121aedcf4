"""What `odcsim` and `odc_engine` do alike: a mistake is one line on stderr and exit status 2, an interrupt 130."""

import argparse
import contextlib
import errno
import sys
from collections.abc import Callable, Iterable
from textwrap import fill
from typing import Any, NoReturn

from odcsim.errors import InputError
from odcsim.support.printing import Printed, printable, silence, standing

# What a path that somebody gave can be wrong in, wherever it is looked at.
_PATHS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS)
# What a machine may have none left of.
_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one line on stderr.

    `fill` adds arguments that are slow to make, once somebody asks for this command. `example` is a whole command, for
    who left out what one needs.
    """

    def __init__(
        self, *args: Any, fill: "Callable[[Parser], None] | None" = None, example: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._fill, self._example = fill, example
        self._hidden: set[str] = set()

    def grouped(self, titles: Iterable[str], last: str) -> dict[str, Any]:
        """Groups of the help by their titles. What belongs to none of them comes last, under a title of its own."""
        groups = {title: self.add_argument_group(title) for title in titles}
        self._optionals.title = last
        self._action_groups.sort(key=lambda group: group is self._optionals)
        return groups | {last: self._optionals}

    def hide(self, names: Iterable[str]) -> None:
        """What `--help` leaves to `--help-all`."""
        if not self._hidden:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option and exit")
        self._hidden |= set(names)

    def format_help(self) -> str:
        if not self._hidden:
            return super().format_help()
        known = {action: action.help for action in self._actions if _names(action) & self._hidden}
        for action in known:
            action.help = argparse.SUPPRESS
        words = f"{self.prog} {self._shortest()} [options]"
        self.usage, usage = fill(words, 72, subsequent_indent=7 * " ", break_on_hyphens=False), self.usage
        try:
            return super().format_help()
        finally:
            self.usage = usage
            for action, told in known.items():
                action.help = told

    def _shortest(self) -> str:
        """What has to be given."""
        names = [a.metavar or a.dest for a in self._actions if not a.option_strings]
        names += [_asked_for(a) for a in self._actions if a.required and a.option_strings]
        either = (g for g in self._mutually_exclusive_groups if g.required)
        several = (" | ".join(map(_asked_for, g._group_actions)) for g in either)
        return " ".join([*map(str, names), *(f"({some})" for some in several)])

    def add_argument(self, *names: Any, **how: Any) -> argparse.Action:
        """Whatever writes a file can be told to write over another kind of file."""
        action = super().add_argument(*names, **how)
        if action.dest in ("output", "html") and "--force" not in self._option_string_actions:
            super().add_argument("--force", action="store_true", help="write over a file of another kind")
        return action

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        if add := self._fill:
            self._fill = None
            add(self)
        return super().parse_known_args(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        if self._example and (" are required: " in message or message.endswith(" is required")):
            message += f"; for example: {self._example}"
        print(f"{self.prog}: error: {printable(message)}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(2)


def _asked_for(action: argparse.Action) -> str:
    return f"{action.option_strings[0]} {action.metavar or action.dest.upper()}"


def _names(action: argparse.Action) -> set[str]:
    """What it decides, and what it is called: of several flags for one field some may be hidden."""
    return {action.dest, *(name.strip("-").replace("-", "_") for name in action.option_strings)}


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser._hidden = set()  # type: ignore[attr-defined]
        parser.print_help()
        parser.exit()


def status(name: str, run: Callable[[], int | None], *failures: type[Exception]) -> int:
    """Run a command and give its exit status. What is among `failures` is told in one line too, with status 1."""
    standing()
    told: tuple[type[Exception], ...] = (InputError, *failures)
    try:
        return _printed(run)
    except told as error:
        return _tell(name, str(error), 2 if isinstance(error, InputError) else 1)
    except BrokenPipeError:
        silence()  # the reader of what is printed has left (`odcsim ... | head`)
        return 0
    except MemoryError as error:
        return _tell(name, lacking(error), 1)
    except ImportError as error:
        reason = next(iter(str(error).split("\n")), "")
        return _tell(
            name, f"{error.name or 'a library'} cannot be loaded ({reason}); install it anew, or free memory", 1
        )
    except OSError as error:
        if problem := _misplaced(error):
            return _tell(name, problem, 2)
        if not lacking(error):
            raise
        silence()
        return _tell(name, lacking(error), 1)
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130


def told(error: Exception) -> str:
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


def _printed(run: Callable[[], int | None]) -> int:
    """All that is printed has arrived, or is known not to, before the process ends."""
    printed: Any = Printed(sys.stdout)
    try:
        with contextlib.redirect_stdout(printed):
            return int(run() or 0)
    finally:
        sys.stdout.flush()


def _tell(name: str, problem: str, code: int) -> int:
    print(f"{name}: error: {printable(problem)}", file=sys.stderr)
    return code
