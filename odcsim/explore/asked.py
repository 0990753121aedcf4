"""What somebody set on the page: a question, a link that carries it, and the command that asks the same."""

import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from odcsim.errors import InputError
from odcsim.questions.asking import ask
from odcsim.questions.setting import Setting
from odcsim.reading import load
from odcsim.trace import Trace

# What each slider stops at.
DEVICES = (2, 4, 8, 16, 32, 64)
MINIBATCH = (1, 2, 4, 8, 16)
ROOM = (0, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)  # a microbatch's limit over the longest sample; 0: as compare's
NETWORK = (0, 25, 50, 100, 200, 400, 800)  # Gb/s of a network card; 0: the GPU's usual one
DRAWS = (4, 8, 16, 50, 200)


@dataclass(frozen=True, slots=True)
class Asked:
    trace: str = "longalign"
    model: str = "r1-distill-qwen-1.5b"
    gpu: str = "a100"
    devices: int = 8
    minibatch: int = 4
    room: float = 0.0
    network: int = 0
    price: float = 2.0  # dollars of a GPU-hour
    minibatches: int = 8

    @property
    def search(self) -> str:
        """What a link holds of it: everything that is not as usual."""
        usual = Asked()
        changed = {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)
        }
        return f"?{urlencode(changed)}" if changed else ""

    @property
    def lengths(self) -> Trace:
        return _loaded(self.trace)

    @property
    def limit(self) -> int | None:
        """Of a microbatch; None: what memory and speed make best, as for `odcsim compare`."""
        return round(self.lengths.longest * self.room) if self.room else None

    @property
    def setting(self) -> Setting:
        return _setting(self)

    @property
    def command(self) -> str:
        """For a terminal. A network of one's own is a file, here one that bash makes up."""
        words = ["odcsim", "compare", self.trace, "--model", self.model, "--gpu", self.gpu]
        words += ["--devices", str(self.devices), "--minibatch", str(self.minibatch)]
        words += [] if self.limit is None else ["--max-tokens", str(self.limit)]
        words += ["--minibatches", str(self.minibatches), "--price", f"{self.price:g}"]
        network = f" --cluster <(echo nic_gbit_s={self.network})" if self.network else ""
        return shlex.join(words) + network


def linked(search: str) -> Asked:
    """What a link holds; what it says that nobody knows is refused by name."""
    kinds: Mapping[str, type] = {f.name: type(getattr(Asked(), f.name)) for f in fields(Asked)}
    values: dict[str, Any] = {}
    for name, text in parse_qsl(search.removeprefix("?")):
        try:
            values[name] = kinds[name](text)
        except (KeyError, ValueError):
            raise InputError(f"the link says {name}={text}", fix=f"it may say {', '.join(kinds)}") from None
    return Asked(**values)


@lru_cache(maxsize=64)
def _setting(asked: Asked) -> Setting:
    """Made once for the table, the chart and the break-even, since a limit may have to be chosen."""
    return ask(
        asked.lengths,
        asked.model,
        gpu=asked.gpu,
        devices=asked.devices,
        minibatch=asked.minibatch,
        max_tokens=asked.limit,
        minibatches=asked.minibatches,
        price=asked.price,
        cluster=_cluster(asked.network) if asked.network else None,
    )


@lru_cache(maxsize=16)
def _loaded(name: str) -> Trace:
    return load(name)


@lru_cache(maxsize=16)
def _cluster(gbit: int) -> str:
    """A file with this network."""
    path = Path(tempfile.mkdtemp()) / "cluster.toml"
    path.write_text(f"nic_gbit_s={gbit}\n", encoding="utf-8")
    return str(path)
