"""Changed inputs through every reader and command of odcsim, in forked workers with limits of memory and time.

    python tests/breaking/fuzz.py [--inputs 20000] [--seed 0] [--only NUMBER] [--workers N]

Input number N of a seed is always the same: `--only N` runs it once more, here, and keeps what it was. Exits with 1
where a command ended in a traceback, hung, took too much memory, wrote half a file, or said anything but one line.
"""

import argparse
import contextlib
import io
import json
import os
import re
import selectors
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import judge
import mutations
import seeds

CHUNK = 40  # inputs for one worker
HUNG = 3 * judge.SECONDS  # seconds without a word from a worker: something in C that no alarm ends


def input_of(seed: int, number: int, corpus: Path, folder: Path) -> list[str]:
    """The command line of an input, which is written into the folder."""
    rng = Random(f"{seed} {number}")
    case = rng.choice(seeds.CASES)
    data = (corpus / case.seed).read_bytes() if case.seed else case.text.encode()
    changed = mutations.changed(data, case.seed, rng)
    if case.seed:
        given = folder / "in" / case.seed
        if (around := given.parent) != folder / "in":
            shutil.copytree((corpus / case.seed).parent, around)
        around.mkdir(parents=True, exist_ok=True)
        given.write_bytes(changed)
        text = str(given)
    else:
        text = changed.replace(b"\x00", b"").decode(errors="replace")
    out = str(folder / "out" / "made")
    words = {"IN": text} | {path.name: str(path) for path in corpus.iterdir()}
    starts = {"OUT": out, "AROUND": str(Path(text).parent)}
    argv = [words.get(word, word) for word in case.argv]
    for name, value in starts.items():
        argv = [value + word.removeprefix(name) if word.startswith(name) else word for word in argv]
    return argv


def tried(seed: int, number: int, corpus: Path, folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "out").mkdir(parents=True)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    argv = input_of(seed, number, corpus, folder)
    told = judge.complaint(argv, folder / "out")
    return f"{told}\n      odcsim {' '.join(argv)[:300]!a}" if told else ""


def work(seed: int, numbers: range, corpus: Path, folder: Path, pipe: int) -> None:
    judge.limit_memory()
    for number in numbers:
        told = tried(seed, number, corpus, folder)
        os.write(pipe, (json.dumps([number, told]) + "\n").encode()[:4000] + b"\n")


class Worker:
    """A forked process at a range of inputs."""

    def __init__(self, seed: int, numbers: range, corpus: Path, folder: Path) -> None:
        self.numbers, self.done, self.heard, self._rest = numbers, 0, time.monotonic(), b""
        self.pipe, end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            try:
                work(seed, numbers, corpus, folder, end)
            finally:
                os._exit(0)
        os.close(end)

    def hear(self) -> Iterator[str]:
        """What it complains of since it was last heard."""
        self.heard = time.monotonic()
        data = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in filter(None, lines):
            self.done += 1
            number, told = json.loads(line)
            if told:
                yield f"input {number}: {told}"

    def end(self, hung: bool) -> None:
        if hung:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)


def fuzz(inputs: int, seed: int, workers: int, corpus: Path, folder: Path) -> Iterator[str]:
    """What is wrong, one by one."""
    left = [range(i, min(i + CHUNK, inputs)) for i in range(0, inputs, CHUNK)][::-1]
    at_work = selectors.DefaultSelector()
    while left or at_work.get_map():
        while left and len(at_work.get_map()) < workers:
            worker = Worker(seed, numbers := left.pop(), corpus, folder / str(numbers.start))
            at_work.register(worker.pipe, selectors.EVENT_READ, worker)
        ready = [key.data for key, _ in at_work.select(1.0)]
        for worker in [key.data for key in at_work.get_map().values()]:
            before = worker.done
            if worker in ready:
                yield from worker.hear()
            hung = time.monotonic() - worker.heard > HUNG
            if hung or (worker in ready and worker.done == before):
                at_work.unregister(worker.pipe)
                worker.end(hung)
                shutil.rmtree(folder / str(worker.numbers.start), ignore_errors=True)
                if worker.done < len(worker.numbers):
                    number = worker.numbers[worker.done]
                    yield f"input {number}: {'hung' if hung else 'its process died'}"
                    left.append(worker.numbers[worker.done + 1 :])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    warnings.simplefilter("always")
    with tempfile.TemporaryDirectory(prefix="breaking-") as name:
        corpus = Path(name, "corpus")
        corpus.mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            seeds.write(corpus)
        if args.only is not None:
            print(tried(args.seed, args.only, corpus, Path(tempfile.mkdtemp(prefix="broken-"))) or "all is well")
            return 0
        return _count(fuzz(args.inputs, args.seed, args.workers, corpus, Path(name)), args.inputs)


def _count(complaints: Iterator[str], inputs: int) -> int:
    began, kinds = time.monotonic(), Counter[str]()
    for told in complaints:
        kind = re.sub(r"'[^']*'|\d+", "", told.partition(": ")[2].partition("\n")[0])[:60]
        kinds[kind] += 1
        if kinds[kind] <= 2:
            print(told, flush=True)
    print(f"{inputs:,} inputs in {time.monotonic() - began:.0f} s: {kinds.total()} broke something")
    return 1 if kinds else 0


if __name__ == "__main__":
    raise SystemExit(main())
