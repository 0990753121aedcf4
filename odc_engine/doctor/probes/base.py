"""What a probe is, what it is asked with, and what it answers."""

import importlib
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

OK, FAILED, ABSENT = "ok", "failed", "absent"
CPU = "cpu"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """`found` is one line for people, `data` the figures behind it."""

    status: str
    found: str
    data: dict[str, Any] = field(default_factory=dict)


class Absent(Exception):
    """Something that the probe needs is not there: nothing can be said."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A function of a module, `module:function`, that is asked in a process of its own and ended after `seconds`."""

    name: str
    asks: str
    seconds: float
    call: str
    needs: tuple[str, ...] = ()  # of needs.NEEDS, looked for in turn
    rung: int = 1  # of the ladder: one command asks those of one rung
    measures: bool = False  # asks how much, and not whether something holds
    stands_in: bool = True  # a CPU may stand in for the GPU, to see the probe itself at work


@dataclass(frozen=True, slots=True)
class Hearing:
    """What a probe is asked with: the device, or a CPU that stands in for it with small sizes, and a folder in which
    probes leave what others build on."""

    folder: Path
    device: str = "cuda"
    name: str = ""
    seconds: float = 600.0  # that it has

    @property
    def stands_in(self) -> bool:
        return self.device == CPU

    def size(self, usual: T, small: T) -> T:
        return small if self.stands_in else usual

    @property
    def patience(self) -> float:
        """Seconds after which it shall itself say who does not answer."""
        return 0.8 * self.seconds

    def note(self, **figures: Any) -> None:
        """Keep figures as soon as they are known: whatever happens to this process, they are told."""
        with notes_of(self.folder, self.name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")
        print(f"{time.strftime('%H:%M:%S')} {figures}", flush=True)


def notes_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.figures"


def noted(folder: Path, name: str) -> dict[str, Any]:
    """All figures of a probe so far. A line that was cut off where its process ended is left out."""
    found: dict[str, Any] = {}
    path = notes_of(folder, name)
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found |= json.loads(line)
        except ValueError:
            continue
    return found


def answer(call: str, hearing: Hearing) -> Answer:
    """What a probe says, in this process."""
    module, _, function = call.partition(":")
    try:
        found: Callable[[Hearing], Answer] = getattr(importlib.import_module(module), function)
        return found(hearing)
    except Absent as absent:
        return Answer(ABSENT, str(absent))
    except Exception as error:
        traceback.print_exc()
        return Answer(FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])
