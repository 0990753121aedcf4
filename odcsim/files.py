"""Files are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odcsim.errors import InputError


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
