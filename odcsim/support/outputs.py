"""Files that we write: whole or not at all, by one process at a time, over and into nothing that a command reads, and
over nothing but what odcsim wrote unasked. Commands ask before the work whose result it would be."""

import atexit
import os
import re
import secrets
import shutil
import signal
import stat
import tempfile
import threading
import time
import zlib
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO
from weakref import WeakSet

from odcsim.errors import InputError

try:
    import fcntl
except ImportError:  # a system without locks of files
    fcntl = None  # type: ignore[assignment]


def check_writable(path: Path) -> None:
    """Refuse what cannot be a file. Worth asking before long work whose result is to be written there."""
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise InputError("is a folder", where=str(path), fix="name a file to write")
    if mode is not None and (stat.S_ISBLK(mode) or stat.S_ISSOCK(mode)):
        raise InputError("is a disk or a socket", where=str(path), fix="name a file to write")
    # Path.resolve has errors of its own for links that lead in a circle.
    folder = (Path(os.path.realpath(path)) if path.is_symlink() else path).parent
    if not folder.is_dir():
        raise InputError("its folder does not exist", where=str(path), fix=f"make {folder} first")


def check_new_folder(path: Path) -> None:
    """Refuse a folder that cannot be made, or is there: what is in it stays."""
    if _mode(path) is not None or path.is_symlink() or not path.parent.is_dir():
        problem = "its folder does not exist" if not path.parent.is_dir() else "is there already"
        raise InputError(problem, where=str(path), fix="name a folder that is to be made")


def check_apart(output: Path, inputs: Iterable[str]) -> None:
    """No command writes over what it reads, by whatever name or link it is named."""
    mode = _mode(output)
    if mode is None or not stat.S_ISREG(mode):
        return
    for name in inputs:
        with suppress(OSError, ValueError):  # a name of the catalog, or a file that is missed where it is read
            if output.samefile("/dev/stdin" if name == "-" else name):
                raise InputError("is what this command reads", where=str(output), fix="write to another file")


def write_text(path: Path, text: str) -> None:
    """A name in it may hold bytes that are no text: they are spelled out, as where they are printed."""
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of the one at `path` when the block succeeds, and goes when it fails.

    Links stay: what they lead to is replaced. What is no regular file, as a pipe, /dev/null or what stdout leads to,
    is written into: a file in its place would not reach whoever reads there.
    """
    check_writable(path)
    with telling(path):
        if _leads_elsewhere(path):
            # Written elsewhere first: archives go back and forth, and ask where they are, which no pipe or device can.
            with path.open("wb") as out, tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                shutil.copyfileobj(file, out)
            return
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        # In the same folder, under a name that nobody could have laid a link under; a new file or none.
        temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}")
        new = temporary.open("xb")
        try:
            with _gone_when_terminated(temporary), new:
                yield new
                new.flush()
                if mode is not None:
                    with suppress(PermissionError):  # not every file system knows who may read
                        temporary.chmod(stat.S_IMODE(mode))
                new.close()  # before it moves, which an open file cannot everywhere
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A name for somebody else to write under, who may fail afterwards or be killed. What is there when the block
    succeeds goes to `path`; whatever else was left beside it goes away."""
    check_writable(path)
    target = Path(os.path.realpath(path))
    beside = None if _leads_elsewhere(path) else target.parent
    with ExitStack() as stack:
        with telling(path):
            folder = stack.enter_context(scratch(f".{target.name[:40]}.", beside))
        yield (name := folder / "draft")
        if name.exists():
            with replacing(path) as out, name.open("rb") as file:
                shutil.copyfileobj(file, out)


@contextmanager
def scratch(prefix: str = "odcsim-", folder: Path | None = None) -> Iterator[Path]:
    """A folder for a while: it goes when the block ends, and with this process, whatever thread is in the block."""
    new = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    _SCRATCH.add(new)
    try:
        with _gone_when_terminated(new):
            yield new
    finally:
        _remove(new)
        _SCRATCH.discard(new)


_SCRATCH = set[Path]()


@atexit.register
def _remove_scratch() -> None:
    """Threads go on writing until the very end, also while their folder is being removed."""
    for folder in [*_SCRATCH]:
        for _ in range(100):
            _remove(folder)
            if not folder.exists():
                break
            time.sleep(0.01)


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """What the system says of a file that cannot be written becomes one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot be written ({reason})", where=str(path), fix="see its folder") from None


class _Leaving:
    """SIGTERM ends Python without a word, unless somebody takes it."""

    def __init__(self, temporary: Path, before: "_Leaving | None") -> None:
        self.temporary, self.before = temporary, before

    def __call__(self, number: int, _: FrameType | None) -> None:
        leaving: _Leaving | None = self
        while leaving is not None:
            _remove(leaving.temporary)
            leaving = leaving.before
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


@contextmanager
def _gone_when_terminated(temporary: Path) -> Iterator[None]:
    """A file or a folder, and those of blocks around this one. Where somebody else has taken SIGTERM, it is theirs to
    clean up."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    if not (isinstance(before, _Leaving) or before == signal.SIG_DFL):
        yield
        return
    signal.signal(signal.SIGTERM, _Leaving(temporary, before if isinstance(before, _Leaving) else None))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _remove(temporary: Path) -> None:
    if temporary.is_dir() and not temporary.is_symlink():
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        temporary.unlink(missing_ok=True)


def _mode(path: Path) -> int | None:
    """Of what `path` leads to; None where nothing is there."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot be written ({reason})", where=str(path), fix="name a file to write") from None


def _leads_elsewhere(path: Path) -> bool:
    """Whether it is no regular file, or, as /dev/stdout, one that some process has open already."""
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        return True
    while mode is not None and path.is_symlink():
        path = path.parent / path.readlink()
        if Path(os.path.realpath(path.parent)).parts[:2] == ("/", "proc"):
            return True
    return False


class _Lock:
    """An open file with a lock of the kernel on it, which goes when its holder ends, however."""

    def __init__(self, path: Path) -> None:
        self.path, self.new, self.locked = path, True, False
        self.fd: int | None
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            self.new, self.fd = False, os.open(path, os.O_RDWR)  # a lock over NFS takes a file that can be written
        _LOCKS.add(self)

    def take(self) -> bool:
        """Whether nobody else has the lock, as far as the file system knows of locks."""
        if fcntl is None or self.fd is None:
            return True
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self.locked = True
        return True

    def is_there(self) -> bool:
        """Whether nobody has put the file away before it was locked."""
        with suppress(FileNotFoundError):
            return self.fd is not None and os.path.samestat(os.fstat(self.fd), self.path.stat())
        return False

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None


_LOCKS: WeakSet[_Lock] = WeakSet()


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """The file at `path` is there, and ours alone; who else asks for it is refused. One that was not there and is left
    empty goes again. Where a file system has no locks nobody is kept out: what is written has to bear company."""
    with telling(path):
        while True:
            file = _Lock(Path(os.path.realpath(path)))
            free = file.take()
            if free and file.is_there():
                break
            file.close()
            if not free:
                raise InputError(
                    "another run is writing to it", where=str(path), fix="wait for it, or name another output"
                )
    try:
        yield
    finally:
        if file.fd is not None and file.new and file.locked and not os.fstat(file.fd).st_size and file.is_there():
            file.path.unlink()
        file.close()


def _unlock() -> None:
    """A forked process, as a worker may be one, would keep the lock when its holder is killed."""
    for file in list(_LOCKS):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


# What arguments that may name a file or a folder to read are called, in any command: lengths, and all else.
DATA = ("trace", "source", "sources", "lengths", "plan")
INPUTS = (
    *DATA,
    *"schedule timeline timelines predicted measured name model gpu profile cluster tokenizer rows grid".split(),
    *("gpus", "recipe_file", "config", "log", "hang"),
)
OUTPUTS = ("output", "html", "steps", "svg", "per_device")


@dataclass(frozen=True, slots=True)
class OutputKind:
    """What a command writes. `begins`: how all that odcsim has written of it begins, and nothing of somebody else's;
    lengths say nothing of who wrote them."""

    named: str
    endings: tuple[str, ...] = ()  # the usual one first
    begins: str = ""
    only: bool = False  # no other ending will do


_HEAD, _TAIL = 512, 1 << 17  # bytes that tell what a file is
_TABLE = r"point,trace,|\{\"point\": \"|PAR1.*idle_parts\."
_PAGE = r'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy"'
_KINDS = {
    "page": OutputKind("a page", (".html", ".htm"), _PAGE),
    "picture": OutputKind("a picture", (".svg",), r'<svg [^>]*role="img"[^>]*>\s*<title>Minibatch \d'),
    "steps": OutputKind("a table of steps", (".csv", ".tsv", ".txt"), "run,step,seconds,elapsed,"),
    "timeline": OutputKind("a timeline", (".npz",), r"PK\x03\x04.{26}header\.npy"),
    "schedule": OutputKind("a schedule", (".jsonl", ".json"), r'\s*\{\s*"format": "odcsim schedule"'),
    "profile": OutputKind("a profile", (".json",), r'\s*\{\s*"format": "odcsim profile"'),
    "events": OutputKind(
        "trace events", (".json", ".gz"), r'\{"traceEvents":\[\{"ph":"M","name":"process_name","pid":0,'
    ),
    "lengths": OutputKind("lengths", (".csv", ".jsonl", ".npy", ".parquet"), only=True),
    "config": OutputKind("a trainer's file", (".yaml", ".yml", ".json", ".toml", ".sh")),
    "points": OutputKind("a sweep's table", (".csv", ".jsonl", ".parquet"), _TABLE, only=True),
}
_INSIDE = ("config.json", "tokenizer*.json", "*.jinja", "*/*.jinja")  # what a model's folder is read for
# What goes there, where it is no matter of the command.
_WRITTEN = {"html": "page", "steps": "steps", "svg": "picture"}
# Other endings that are not known are somebody's own; a pipe has none.
_KNOWN = {
    *(ending for kind in _KINDS.values() for ending in kind.endings),
    *".npy .parquet .arrow .idx .zip .toml .yaml .yml .md .py .xml .pdf .png .jpg .jpeg".split(),
}


def check_outputs(args: Namespace) -> None:
    """Refuse what a command is not to write to. `args.writes` is the kind of what goes to `args.output`."""
    given = {name: _listed(getattr(args, name, None)) for name in (*INPUTS, *OUTPUTS, "against")}
    for name, values in given.items():
        if "" in values:  # the folder that somebody is in
            raise InputError(f"the name for {name.replace('_', ' ')} is empty", fix="give one")
    read = [path for name in INPUTS for path in given[name]]
    for folder in (*given["model"], *given["tokenizer"]):
        read += [str(path) for form in _INSIDE for path in Path(folder).glob(form)]
    folders = [name for argument in DATA for name in given[argument]]
    written: list[str] = []
    for name in OUTPUTS:
        for text in given[name]:
            path = Path(text)
            if name == "per_device":
                check_new_folder(path)
            else:
                kind = _KINDS[_WRITTEN.get(name) or args.writes]
                check_writable(path)
                check_apart(path, read)
                _check_ending(path, kind)
                _check_own(path, kind, getattr(args, "force", None))
            for other in written:  # of two in one place the first is lost, whatever links lead there
                there = path.exists() and Path(other).exists()
                same = path.samefile(other) if there else os.path.realpath(path) == os.path.realpath(other)
                if same and not path.is_char_device():  # which keeps nothing
                    problem = f"is written to twice, as {other}, too"
                    raise InputError(problem, where=str(path), fix="name two files")
            for folder in folders:  # a dataset is all that lies in its folder: the next time this would be read, too
                with suppress(OSError, ValueError):
                    if Path(folder).is_dir() and path.resolve().is_relative_to(Path(folder).resolve()):
                        problem = f"is inside {folder}, which this command reads"
                        raise InputError(problem, where=str(path), fix="write elsewhere")
            written.append(text)


def _listed(value: object) -> list[str]:
    """Names that somebody gave: none, one or several; a number, as of `--steps` of `rl`, is none."""
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []


def _check_ending(path: Path, kind: OutputKind) -> None:
    """A name that says another kind of file would be opened as what it is not."""
    suffix, page = path.suffix.lower(), kind is _KINDS["page"]
    if suffix in kind.endings or (not kind.only and suffix not in _KNOWN and not (page and suffix)):
        return
    problem = "is no name of a page" if page else f"is no name for {kind.named}"
    names = ", ".join(f"FILE{ending}" for ending in kind.endings[: None if kind.only else 1])
    raise InputError(problem, where=str(path), fix=f"{'pages are HTML: ' if page else ''}name it {names}")


def _check_own(path: Path, kind: OutputKind, force: bool | None) -> None:
    """Over what odcsim has written of this kind, anew; over whatever else is there only when told to. `force` is None
    where a command has no flag for it."""
    if force or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            if head.startswith(b"\x1f\x8b"):
                head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD) or head
            elif head.startswith(b"PAR1"):  # which says at its end what it holds
                file.seek(max(0, path.stat().st_size - _TAIL))
                head += file.read(_TAIL)
    except (OSError, zlib.error):
        head = b"?"
    if head and not (kind.begins and re.match(kind.begins.encode(), head, re.DOTALL)):
        own = f", and is not {kind.named} that odcsim wrote" if kind.begins else ""
        fix = "move it away" if force is None else "name another file, or give --force"
        raise InputError(f"is there{own}", where=str(path), fix=fix)
