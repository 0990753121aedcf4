"""What `odcsim` and `odc_engine` do alike: a mistake is one line on stderr and exit status 2, an interrupt 130; and a
recipe is asked for by the same flags."""

import argparse
import contextlib
import errno
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from textwrap import fill
from typing import Any, NoReturn

from odcsim.errors import InputError
from odcsim.recipe import CHOICES, RECOMPUTE, SELECTIVE, flag
from odcsim.support.printing import Printed, printable, silence, standing

# What a path that somebody gave can be wrong in, wherever it is looked at.
_PATHS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS)
# What a machine may have none left of.
_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


# As SI has it, so that nobody has to guess what a number comes to: 16k is 16,000 of anything, 16Ki is 16,384.
SIZES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "ki": 2**10, "mi": 2**20}
TIMES = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_TAKEN = "fields of a recipe"  # where a command line notes which ones it takes
_NUMBER = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,12}(?:\.\d{1,20})?) ?([a-z]*)", re.ASCII)


def human(text: str, units: Mapping[str, int] = SIZES) -> Fraction | None:
    """What people write for a number, exactly: 4096, 65,536, 16k, 1.5M; in `TIMES` 90, 90s, 30min, 12h. Else None."""
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        return None
    return Fraction(match[1].replace(",", "")) * units[match[2]]


def duration(seconds: float) -> str:
    """A time as people say it: 42 s, 12 min, 4 h 05 min, 123 h 00 min."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02d} min"


def counted(count: int, noun: str) -> str:
    """1 update, 4 updates, 2 microbatches."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def whole(text: str) -> int:
    """A whole number from 1, as people write it."""
    value = human(text)
    if value is None or value.denominator > 1 or not 1 <= value < 10**12:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a whole number from 1, such as 4096, 16k (16,000) or 16Ki (16,384)"
        )
    return int(value)


def amount(text: str) -> float:
    """A number from 0, as a price ($2.5) or as a share (3%), too."""
    plain = text.strip().removeprefix("$")
    try:
        value = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        value = float(human(plain) or math.nan)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0")
    return value


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
        self._hidden |= set(names)
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option and exit")

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
        names += [f"{a.option_strings[0]} {a.metavar}" for a in self._actions if a.required and a.option_strings]
        either = (g for g in self._mutually_exclusive_groups if g.required)
        several = (" | ".join(f"{a.option_strings[0]} {a.metavar}" for a in g._group_actions) for g in either)
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


def _names(action: argparse.Action) -> set[str]:
    """What it decides, and what it is called: of several flags for one field some may be hidden."""
    return {action.dest, *(name.strip("-").replace("-", "_") for name in action.option_strings)}


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser._hidden = set()  # type: ignore[attr-defined]
        parser.print_help()
        parser.exit()


def add_recipe(parser: "argparse._ActionsContainer", names: Iterable[str]) -> None:
    """Flags that ask for these fields of a recipe, and for a file of it: flags win."""
    taken = tuple(names)
    parser.set_defaults(**{_TAKEN: taken})
    parser.add_argument("--recipe", action=_File, metavar="FILE", help="TOML: what the flags of a recipe say")
    for name in taken:
        choice, kind = CHOICES[name], type(CHOICES[name].usual)
        how: dict[str, Any] = {"dest": name, "help": choice.help or None, "default": argparse.SUPPRESS}
        if kind is bool:
            how["action"] = "store_false" if choice.usual else "store_true"
        else:
            how |= {"type": _again if name == "recompute" else kind, "choices": choice.values or None}
            how["required"] = choice.compared
        parser.add_argument(flag(name), **how)
        if name == "recompute":
            same: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
            parts: dict[str, Any] = {"type": _part, "choices": RECOMPUTE[:3], "metavar": f"{{{','.join(SELECTIVE)}}}"}
            parser.add_argument("--no-recompute", action="store_const", const="none", **same, help="--recompute none")
            parser.add_argument("--selective", **parts, **same, help="--recompute operators, or layers")
        if name == "stack":
            parser.add_argument(
                "--compile",
                dest=name,
                action="store_const",
                const="compiled",
                default=argparse.SUPPRESS,
                help="--stack compiled",
            )


class _File(argparse.Action):
    """What a file chooses is not asked for again."""

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, path: Any, _: Any = None) -> None:
        from odcsim.recipe_file import read

        try:
            fields = read(path)
        except InputError as error:
            print(f"{parser.prog}: error: {printable(str(error))}", file=sys.stderr)
            raise SystemExit(2) from None
        if idle := [name for name in fields if name not in vars(args)[_TAKEN]]:
            print(f"{parser.prog}: nothing here acts on {', '.join(idle)} of {printable(str(path))}", file=sys.stderr)
        args.recipe, args.recipe_file = fields, str(path)
        for action in parser._actions:
            action.required = action.required and action.dest not in fields


def _again(text: str) -> str:
    """Megatron's name of it is as good."""
    return "operators" if text == "selective" else text


def _part(text: str) -> str:
    return "full" if text == SELECTIVE[0] else text


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """Of a recipe what the command line chose, else its file; what it has no flag for is as usual."""
    given = {name: getattr(args, name) for name in CHOICES if hasattr(args, name)}
    taken, file = getattr(args, _TAKEN, ()), getattr(args, "recipe", None) or {}
    usual = {name: CHOICES[name].usual for name in taken if not CHOICES[name].compared}
    return usual | {name: value for name, value in file.items() if name in taken} | given


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
