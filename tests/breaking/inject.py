"""Devices of the engine killed or stopped at random points of a run, and now and then the process that starts them.

    python tests/breaking/inject.py [--faults 300] [--seed 0] [--first N] [--workers N]

Exits with 1 where a run hung, ended in a traceback or without a word, or left a process, a file in the temporary folder
or /dev/shm, or the timeline of a run that had failed, and where a run after one whose server was killed does not work.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "helpers"))

from jobs import file_of, job_for

from odc_engine.errors import EngineError
from odc_engine.runs import run as runs
from odc_engine.runs import server, watch
from odcsim import timeline

DEVICES = 3
TIMEOUT = 3.0  # seconds that a peer may be silent
OTHERS = ("sem.mp-", "torch_")  # of Python's pools and of torch's loaders; the engine has none
HUNG = 60.0  # seconds after which a run has no end
OURS = r"odc_engine: the machine is busy.*|device \d pid \d+|minibatch \d+ done|odc_engine: error: .*"
GLOO = r"\[[^]]*(/gloo/|ProcessGroupGloo)[^]]*\] .*connect.*"  # its own words where a device died while it connected
TOLD = re.compile(f"{OURS}|{GLOO}")
MINIBATCHES = [(2, 3, 1), (1, 2, 2), (2, 1, 1), (1, 1, 3)]


def jobs(sync: str, backend: str):
    counts = MINIBATCHES if sync == "on-demand" else [(2, 2, 2)] * 4
    file = file_of(*counts)
    return file, job_for(file, sync, backend)


CASES = [*[("on-demand", "shm")] * 2, ("collective", "shm"), ("collective", "torch"), ("deferred", "shm")]


def devices() -> list[int]:
    """Processes that the server has forked and that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == server.pid() and state not in "ZX":
            found.append(int(stat.parent.name))
    return sorted(found)


def strike(delay: float, rng: random.Random, struck: list[str]) -> None:
    """After so many seconds, whoever is there."""
    time.sleep(delay)
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
    targets = devices()
    at_server = rng.random() < (0.04 if len(targets) == DEVICES else 0.5) or not targets
    target = server.pid() if at_server else rng.choice(targets)
    try:
        os.kill(target, number)
        struck.append(f"{number.name} to {'the server' if at_server else 'a device'} after {delay:.2f} s")
    except (ProcessLookupError, TypeError):
        struck.append("nobody was there")


def ran(sync: str, backend: str, output: Path, log: Path, timeout: float = TIMEOUT) -> int:
    """What all say is in the log, which the server of forks has open too, once and for all."""
    os.truncate(log, 0)
    file, job = jobs(sync, backend)
    try:
        return runs.run(file, replace(job, timeout=timeout), str(output))
    except EngineError as error:
        watch.say(f"odc_engine: error: {error}")
        return 1


def tried(number: int, seed: int, long: float, folder: Path) -> Iterator[str]:
    """What is wrong with how one run ended."""
    rng = random.Random(f"{seed} {number}")
    sync, backend = rng.choice(CASES)
    output, log, struck = folder / "out" / "t.npz", folder / "log", list[str]()
    output.parent.mkdir(exist_ok=True)
    output.unlink(missing_ok=True)
    before = set(Path("/dev/shm").iterdir())
    fault = threading.Thread(target=strike, args=(rng.uniform(0, long), rng, struck))
    fault.start()
    began = time.monotonic()
    code = ran(sync, backend, output, log)
    seconds = time.monotonic() - began
    fault.join()
    words = f"fault {number} ({struck[0]}, {sync} over {backend}):"
    told = log.read_text().splitlines()
    if odd := [line for line in told if not TOLD.fullmatch(line)]:
        yield f"{words} says {odd[:3]}"
    if code not in (0, 1) or (code == 1 and not any("error" in line for line in told)):
        yield f"{words} exit status {code} and {told}"
    if seconds > HUNG:
        yield f"{words} took {seconds:.0f} s"
    yield from (f"{words} {left}" for left in _left(code, output, folder, before))
    if "KILL to the server" in struck[0]:
        server.died(3.0)  # else the next run may still meet with it
        if after := ran("on-demand", "shm", output, log, HUNG):
            yield f"{words} the next run has exit status {after} and {log.read_text().splitlines()}"


def _left(code: int, output: Path, folder: Path, before: set[Path]) -> Iterator[str]:
    names = [path.name for path in output.parent.iterdir()]
    if names != (["t.npz"] if code == 0 else []):
        yield f"exit status {code} and {names}"
    elif code == 0:
        timeline.read(output)
    if files := [p.name for p in (folder / "tmp").rglob("*") if p.is_file() and "inductor" not in str(p)]:
        yield f"left {files[:3]}"
    if shared := _lasting(lambda: {p for p in Path("/dev/shm").iterdir() if not p.name.startswith(OTHERS)} - before):
        yield f"left {sorted(shared)[:3]} in /dev/shm"
    if alive := _lasting(devices):
        yield f"left the processes {alive}"


def _lasting(look, seconds: float = 3.0):
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def inject(numbers: range, seed: int) -> int:
    """Exits with how many went wrong, told one by one."""
    watch.GRACE, watch.END = 1.0, 5.0
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        tempfile.tempdir = str(folder / "tmp")
        (folder / "out").mkdir()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        for _ in range(2):  # the first pays for torch
            began = time.monotonic()
            if ran("on-demand", "shm", folder / "out" / "t.npz", folder / "log", 60.0):
                print((folder / "log").read_text())
                return 1
        long = 1.3 * (time.monotonic() - began)
        wrong = 0
        for number in numbers:
            for told in tried(number, seed, long, folder):
                wrong += 1
                print(told, flush=True)
        return min(wrong, 100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in {"faults": 300, "first": 0, "seed": 0, "workers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.faults)
    if args.workers == 1:
        code = inject(numbers, args.seed)
        sys.stdout.flush()
        os._exit(code)  # Python would look for its own temporary folder, which is gone with ours
    began, each = time.monotonic(), -(-args.faults // args.workers)
    commands = [
        [sys.executable, __file__, "--first", str(part.start), "--faults", str(len(part)), "--seed", str(args.seed)]
        for part in (numbers[i : i + each] for i in range(0, args.faults, each))
    ]
    processes = [subprocess.Popen([*command, "--workers", "1"]) for command in commands]
    wrong = sum(process.wait() for process in processes)
    print(f"{args.faults} faults in {time.monotonic() - began:.0f} s: {wrong} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
