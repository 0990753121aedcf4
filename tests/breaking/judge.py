"""One command line run in this process, and what is wrong with how it ended."""

import contextlib
import gzip
import io
import json
import os
import resource
import signal
import traceback
from pathlib import Path

import numpy as np

from odcsim.cli import main
from odcsim.support import budget

SECONDS = 60  # for one command, on a machine that does other things too
ROOM = 3 << 29  # bytes that a command may take beside what is loaded; readers refuse what takes more than ALLOWED
ALLOWED = "600MB"
PROMPT = "odcsim"


def limit_memory() -> None:
    """Of this process, from now on."""
    os.environ[budget.VARIABLE] = ALLOWED
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def complaint(argv: list[str], folder: Path) -> str:
    """What is wrong, in words; nothing where all is well. What is written goes into `folder`."""
    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(argv)
    except SystemExit as stopped:
        code = stopped.code
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = next((f for f in reversed(frames) if "/odcsim/" in f.filename), frames[-1])
        return f"{type(error).__name__}: {str(error)[:160]} ({Path(ours.filename).name}:{ours.lineno})"
    finally:
        signal.alarm(0)
    if argv[0] in ("audit", "check") and code == 1:  # it has found what it looks for
        code = 0
    told = _told(code, out.getvalue(), err.getvalue())
    return told or _left(code, folder)


def _late(_number: int, _frame: object) -> None:
    raise TimeoutError(f"no end within {SECONDS} s")


def _told(code: object, out: str, err: str) -> str:
    if code not in (0, 2):
        return f"exit status {code!r}: {err[:300]}"
    if not all(line.isprintable() for line in (*out.split("\n"), *err.split("\n"))):
        return f"steers the terminal: {(out + err)!r:.300}"
    lines = err.splitlines()
    if code == 0:
        return "" if all(line.startswith(PROMPT) for line in lines) else f"exit status 0, but: {err[:300]}"
    if len(lines) != 1 or not lines[0].startswith(PROMPT) or out:
        return f"more than one line: {out[:100]!r} {err[:300]!r}"
    return "memory" if "memory" in err and "too little" in err else ""


def _left(code: object, folder: Path) -> str:
    names = [path.name for path in folder.iterdir()]
    if hidden := [name for name in names if name.startswith(".")]:
        return f"left {hidden}"
    if code and names:
        return f"wrote {names} and failed"
    broken = [path.name for path in folder.iterdir() if not _whole(path)]
    return f"half-written: {broken}" if broken else ""


def _whole(path: Path) -> bool:
    """Whether a file can be read by what is meant to read it."""
    data = path.read_bytes()
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return all(np.isfinite(archive[name]).all() for name in archive.files if archive[name].dtype.kind == "f")
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    if path.suffix == ".html":
        return text.rstrip().endswith("</html>")
    lines = text.splitlines()
    documents = {".jsonl": lines, ".points": lines, ".csv": [], ".txt": []}.get(path.suffix, [text])
    for document in documents:
        json.loads(document, parse_constant=_no_number)
    return bool(text)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} in a file")
