"""Files are written whole or not at all, and one that cannot be read is told in one line."""

import atexit
import os
import secrets
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from odcsim.errors import InputError
from odcsim.support import budget


@contextmanager
def reading(path: Path | str, *others: type[Exception], missing: str, expected: str) -> Iterator[None]:
    """What reading the file at `path` may raise becomes one line; `others` are errors of what takes it apart."""
    damages: tuple[type[Exception], ...] = (OSError, ValueError, RecursionError, *others)
    try:
        with budget.bounded(path):
            yield
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix=missing) from None
    except damages as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"cannot be read ({reason})", where=str(path), fix=f"expected {expected}") from None


def check_writable(path: Path) -> None:
    """Refuse what cannot be a file. Worth asking before long work whose result is to be written there."""
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise InputError("is a folder", where=str(path), fix="name a file to write")
    if mode is not None and (stat.S_ISBLK(mode) or stat.S_ISSOCK(mode)):
        raise InputError("is a disk or a socket", where=str(path), fix="name a file to write")
    folder = (_behind_links(path) if path.is_symlink() else path).parent
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
    with (
        telling(path),
        _open_already(path) if _leads_elsewhere(path) else _beside(_behind_links(path)) as file,
    ):
        yield file


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A name for somebody else to write under, who may fail afterwards or be killed. What is there when the block
    succeeds goes to `path`; whatever else was left beside it goes away."""
    check_writable(path)
    beside = _behind_links(path)
    with ExitStack() as stack:
        with telling(path):
            folder = stack.enter_context(
                scratch(f".{beside.name[:40]}.", None if _leads_elsewhere(path) else beside.parent)
            )
        yield (draft := folder / "draft")
        if draft.exists():
            with replacing(path) as out, draft.open("rb") as whole:
                shutil.copyfileobj(whole, out)


@contextmanager
def scratch(prefix: str = "odcsim-", folder: Path | None = None) -> Iterator[Path]:
    """A folder for a while: it goes when the block ends, and with this process, whatever thread is in the block."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    _SCRATCH.add(made)
    try:
        with _gone_when_terminated(made):
            yield made
    finally:
        _remove(made)
        _SCRATCH.discard(made)


_SCRATCH = set[Path]()


@atexit.register
def _remove_scratch() -> None:
    """Threads go on writing until the very end, also while their folder is being removed."""
    for made in [*_SCRATCH]:
        for _ in range(100):
            _remove(made)
            if not made.exists():
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


@contextmanager
def _open_already(path: Path) -> Iterator[BinaryIO]:
    """Written elsewhere first: archives go back and forth, and ask where they are, which a pipe or a device cannot."""
    with path.open("wb") as file, tempfile.TemporaryFile() as whole:
        yield whole
        whole.seek(0)
        shutil.copyfileobj(whole, file)


@contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    """In the same folder, under a name that nobody could have laid a link under; a new file or none."""
    mode = _mode(path)
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}")
    file = temporary.open("xb")
    try:
        with _gone_when_terminated(temporary), file:
            yield file
            file.flush()
            if mode is not None:
                with suppress(PermissionError):  # not every file system knows who may read
                    temporary.chmod(stat.S_IMODE(mode))
            file.close()  # before it moves, which an open file cannot everywhere
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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


def _behind_links(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve has errors of its own for links that lead in a circle


def _leads_elsewhere(path: Path) -> bool:
    """Whether it is no regular file, or, as /dev/stdout, one that some process has open already."""
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        return True
    while mode is not None and path.is_symlink():
        path = path.parent / path.readlink()
        if _behind_links(path.parent).parts[:2] == ("/", "proc"):
            return True
    return False
