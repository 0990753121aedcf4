"""Files are written whole or not at all, and one that cannot be read is told in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odcsim.errors import InputError


@contextmanager
def reading(path: Path | str, *others: type[Exception], missing: str, expected: str) -> Iterator[None]:
    """What reading the file at `path` may raise becomes one line; `others` are errors of what takes it apart."""
    damages: tuple[type[Exception], ...] = (OSError, ValueError, RecursionError, *others)
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix=missing) from None
    except damages as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"cannot be read ({reason})", where=str(path), fix=f"expected {expected}") from None


def check_writable(path: Path) -> None:
    """Refuse what cannot be a file. Worth asking before long work whose result is to be written there."""
    if path.is_dir():
        raise InputError("is a folder", where=str(path), fix="name a file to write")
    if not path.parent.is_dir():
        raise InputError("its folder does not exist", where=str(path), fix=f"make {path.parent} first")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block succeeds and goes when it fails."""
    check_writable(path)
    # The suffix stays, since some writers choose their format by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror or error})", where=str(path), fix="see its folder"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
