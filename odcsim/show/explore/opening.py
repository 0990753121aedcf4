"""A browser shows the page. A file tells it the link: all users of a machine see the words that start a program."""

import html
import os
import shutil
import signal
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from odcsim.support.outputs import scratch

_PAGE = """<!DOCTYPE html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={link}">
<title>odcsim explore</title><a href="{link}">odcsim explore</a>
"""


@contextmanager
def opened(link: str) -> Iterator[Callable[[], None]]:
    """In the user's own folder, since some browsers see no other. It goes with the block, or once it is called for."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - which does not raise where there is none
    with scratch("odcsim-explore-", home if os.access(home, os.W_OK) else None) as folder:
        file = folder / "open.html"
        file.touch(0o600)
        file.write_text(_PAGE.format(link=html.escape(link)), encoding="utf-8")
        webbrowser.open(file.as_uri())
        yield lambda: shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """Told to end, the server cleans up, as on an interrupt. Signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in known if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
