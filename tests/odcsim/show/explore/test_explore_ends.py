"""The server as a process: how it opens a browser, and that nothing of it stays, however it is ended."""

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from explorer import UPDATE, Page
from scripts import ROOT

pytest.importorskip("dash", reason="pip install 'odcsim[explore]'")

from odcsim.show.explore.serve import serve

CODES = {signal.SIGINT: 0, signal.SIGHUP: 129}


@pytest.fixture
def home(tmp_path):
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "browser").write_text('#!/bin/sh\necho "$@" >> "$HOME/../started"\n')
    (tmp_path / "browser").chmod(0o755)
    return tmp_path


def started(home, *words):
    """The process and its link."""
    env = os.environ | {"HOME": str(home / "home"), "TMPDIR": str(home / "tmp"), "BROWSER": str(home / "browser")}
    code = "import sys; from odcsim.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "explore", "--port", "0", *words]
    run = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return run, run.stdout.readline().removesuffix(" (Ctrl-C ends it)\n")


def left(home):
    return [path.name for name in ("home", "tmp") for path in (home / name).iterdir()]


def waited(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_nothing_stays_of_it_however_it_is_ended(home):
    runs = [(*started(home, "--no-open"), number) for number in CODES]
    assert all(name.startswith("odcsim-explore-") for name in left(home))
    for run, link, number in runs:
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(link.partition("?")[0])
        run.send_signal(number)
        assert run.communicate(timeout=60) == ("", "")
        assert run.returncode == CODES[number]
    assert left(home) == []


def test_a_browser_is_started_without_the_token_in_its_words(home):
    """Which every user of the machine may see; the file that it opens is for its owner alone, and is soon gone."""
    run, link = started(home, "lmsys-chat")
    try:
        waited((home / "started").exists)
        file = Path((home / "started").read_text().strip().removeprefix("file://"))
        assert file.parent.parent == home / "home"
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file)] == [0o700, 0o600]
        assert f'content="0; url={link.replace("&", "&amp;")}"' in file.read_text()
        assert link.partition("token=")[2].partition("&")[2] == "trace=lmsys-chat&sharding=usual"
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with opener.open(link) as reply:
            assert reply.url == link.partition("?")[0] + "?trace=lmsys-chat&sharding=usual"
        waited(lambda: left(home) == [])
    finally:
        run.kill()
        run.communicate()


def test_a_question_that_is_being_answered_leaves_nothing_when_it_is_ended(home):
    lengths = home / "lengths.csv.gz"
    lengths.write_bytes(gzip.compress(b"length\n" + b"".join(b"%d\n" % n for n in range(1, 600_000))))
    run, link = started(home, "--no-open")
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(link).close()
    seen, served = [], serve(0)
    body = Page(served).body("break-even", {"asked": f"?trace={lengths}"})
    served.server.server_close()

    def ask():
        place = link.partition("/?")[0] + UPDATE
        asked = urllib.request.Request(place, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            opener.open(asked).close()
        except OSError as error:
            seen.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    waited(lambda: left(home))
    run.terminate()
    run.communicate(timeout=60)
    assert run.returncode == 143
    asking.join(60)
    assert left(home) == []
