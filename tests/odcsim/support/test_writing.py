"""Files are written whole or not at all, and nothing but the file that was named is touched; who holds one is alone."""

import fcntl
import io
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from scripts import ROOT

from odcsim.errors import InputError
from odcsim.support.outputs import check_writable, lock, replacing, write_text


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "a.json"
    place.write_text("old")
    return place


def content(folder: Path) -> dict[str, str]:
    return {entry.name: entry.read_text() for entry in folder.iterdir()}


def refuses(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        write_text(path, "new")
    assert str(caught.value).startswith(f"{path}: ")


def test_the_new_content_takes_the_old_ones_place(path, tmp_path):
    """Of two that write at once too; names beside are drawn."""
    names = set()
    for _ in range(20):
        with replacing(path) as one, replacing(path) as other:
            one.write(b"first to begin")
            other.write(b"first to end")
            other.flush()
            names |= set(content(tmp_path)) - {"a.json"}
            assert path.read_text() in ("old", "first to begin")
        assert content(tmp_path) == {"a.json": "first to begin"}
    assert len(names) == 40


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("odd")])
def test_a_failing_write_leaves_the_old_content_and_nothing_beside_it(error, path, tmp_path):
    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(InputError if isinstance(error, OSError) else type(error)):
        write_half()
    assert content(tmp_path) == {"a.json": "old"}


def test_names_that_can_be_written_and_that_cannot(tmp_path, monkeypatch):
    """Beside those of tests/approved/support.txt: no link takes the place of one that leads nowhere."""
    refuses(tmp_path / "\0")
    lost, circle = tmp_path / "lost", tmp_path / "circle"
    lost.symlink_to(tmp_path / "no" / "a")
    circle.symlink_to(circle)
    for link in (lost, circle):
        refuses(link)
        assert link.is_symlink()
        link.unlink()
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        with pytest.raises(InputError):
            check_writable(Path("socket"))
    assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)
    (tmp_path / "socket").unlink()
    assert content(tmp_path) == {}
    write_text(tmp_path / ("ü" * 127), "new")  # as long as a name may be
    assert list(content(tmp_path).values()) == ["new"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_device_stays_one_and_is_told(tmp_path):
    for device, write in (("/dev/full", refuses), ("/dev/null", lambda link: write_text(link, "new"))):
        link = tmp_path / Path(device).name  # were it replaced after all, then the link and not the device
        link.symlink_to(device)
        write(link)
        assert link.is_symlink()
        assert stat.S_ISCHR(link.stat().st_mode)


def test_a_link_laid_under_the_name_beside_it_is_never_followed(path, tmp_path, monkeypatch):
    """The name is drawn; this is somebody who knew the draw."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    with replacing(path) as file:
        (beside,) = {entry.name for entry in tmp_path.iterdir()} - {"a.json", "precious"}
        file.write(b"new")
    drawn = beside.rpartition(".")[2]
    monkeypatch.setattr(secrets, "token_hex", lambda _: drawn)
    (tmp_path / beside).symlink_to(precious)
    refuses(path)
    assert content(tmp_path) == {"a.json": "new", "precious": "precious", beside: "precious"}


def test_a_link_stays_and_what_it_leads_to_is_replaced(path, tmp_path):
    """Whether that is there or not."""
    folder = tmp_path / "folder"
    folder.mkdir()
    link = folder / "link.json"
    link.symlink_to("../a.json")
    for text in ("new", "newer"):
        write_text(link, text)
        assert link.is_symlink()
        assert path.read_text() == link.read_text() == text
        assert not path.is_symlink()
        assert [entry.name for entry in folder.iterdir()] == ["link.json"]
        path.unlink()


def test_who_may_read_a_file_may_read_the_new_one_and_nobody_else(path, tmp_path):
    path.chmod(0o600)
    write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "fresh", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_an_archive_may_go_where_nobody_can_ask_how_far_it_is(tmp_path):
    """A device says that it is at its beginning, whatever was written: numpy's archive then ended in struct.error."""
    os.mkfifo(pipe := tmp_path / "pipe")
    for size in (0, 500, 900, 1000, 1030, 5000):
        read = []
        reader = threading.Thread(target=lambda read=read: read.append(pipe.read_bytes()), daemon=True)
        reader.start()
        for path in (Path(os.devnull), pipe):
            with replacing(path) as file:
                np.savez(file, a=np.arange(size), b=np.zeros(3), c=np.arange(size))
        reader.join(10)
        assert np.load(io.BytesIO(read[0]))["c"].tolist() == list(range(size))


@pytest.mark.skipif(not Path("/dev/stdout").is_symlink(), reason="there is no /dev/stdout")
def test_what_stdout_leads_to_is_written_into_whether_a_pipe_or_a_file(tmp_path):
    code = "import pathlib, odcsim.support.outputs as f; f.write_text(pathlib.Path('/dev/stdout'), '7')"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout == "7"
    place = tmp_path / "out"
    with place.open("w") as out:
        inode = os.fstat(out.fileno()).st_ino
        subprocess.run(command, stdout=out, cwd=ROOT, check=True)
    assert content(tmp_path) == {"out": "7"}
    assert place.stat().st_ino == inode
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kinds", ["replacing", "drafted scratch replacing scratch"])
def test_whoever_is_ended_while_writing_leaves_nothing_beside_the_old_file(number, kinds, path, tmp_path):
    code = f"""
import os, signal
from contextlib import ExitStack
from pathlib import Path
from odcsim.support.outputs import draft, replacing, scratch
made = dict(replacing=lambda: replacing(Path({str(path)!r})), drafted=lambda: draft(Path({str(path)!r})),
            scratch=lambda: scratch(folder=Path({str(tmp_path)!r})))
with ExitStack() as stack:
    for kind in {kinds.split()}:
        thing = stack.enter_context(made[kind]())
        if isinstance(thing, Path):
            (thing / "half" if thing.is_dir() else thing).write_text("half")
    print(len(os.listdir({str(tmp_path)!r})), flush=True)
    os.kill(os.getpid(), {int(number)})
    signal.pause()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == f"{1 + len(kinds.split())}\n"
    assert done.returncode == -number
    assert content(tmp_path) == {"a.json": "old"}


def test_a_command_that_waits_for_more_of_a_pipe_leaves_nothing_when_it_is_ended(tmp_path):
    command = [sys.executable, "-m", "odcsim", "trace", "info", "-"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/taken")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(list(tmp_path.iterdir())) == 1
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_who_takes_the_signal_himself_goes_on_taking_it(path):
    """And a thread beside the main one may write."""

    def mine(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with replacing(path):
            assert signal.getsignal(signal.SIGTERM) is mine
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with replacing(path):
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, mine)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    writer = threading.Thread(target=write_text, args=(path, "new"))
    writer.start()
    writer.join(10)
    assert path.read_text() == "new"


THREAD = """
import threading, time
from odcsim.support.outputs import scratch
def work():
    with scratch() as folder:
        for number in range(10**9):
            (folder / f"{number}").write_text("")
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def test_nothing_stays_of_a_thread_that_writes_to_the_very_end(tmp_path):
    for _ in range(4):
        subprocess.run([sys.executable, "-c", THREAD], env=os.environ | {"TMPDIR": str(tmp_path)}, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_worker_does_not_keep_its_parents_lock(tmp_path):
    """As those of a ProcessPoolExecutor, which outlive a parent that is killed."""
    path, (out, into) = tmp_path / "points", os.pipe()
    with lock(path):
        child = os.fork()
        if child == 0:
            os.close(into)
            os.read(out, 1)
            os._exit(0)
    try:
        with lock(path):
            pass
    finally:
        os.close(into)
        os.close(out)
        os.waitpid(child, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_put_away_while_it_is_asked_for_is_not_taken_for_the_one_that_is_there(tmp_path, monkeypatch):
    path, real, left = tmp_path / "points", fcntl.flock, [1, 1]

    def flock(fd, how):
        if left:
            left.pop()
            path.unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock(path):
        assert path.exists()
        with pytest.raises(InputError), lock(path):
            pass
    assert not path.exists()
    with pytest.raises(InputError), lock(tmp_path / "none" / "points"):
        pass
