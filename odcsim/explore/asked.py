"""What somebody set on the page: a question, the link that carries it, and the command that asks the same."""

import shlex
import stat
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from odcsim.cluster import Cluster
from odcsim.errors import InputError
from odcsim.questions import limit
from odcsim.questions.asking import ask
from odcsim.questions.setting import Setting
from odcsim.reading import load
from odcsim.trace import Trace

TEXTS = ("trace", "model", "gpu")


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
        _check_named("trace", self.trace)
        return _loaded(self.trace)

    @property
    def limit(self) -> int | None:
        """Of a microbatch; None: what memory and speed make best, as for `odcsim compare`."""
        return round(self.lengths.longest * self.room) if self.room else None

    @property
    def setting(self) -> Setting:
        for name in TEXTS:
            _check_named(name, getattr(self, name))
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


def _check_named(name: str, text: str) -> None:
    """A page cannot wait for a pipe: nobody writes into the server's own, and what it gave would be gone."""
    mode = stat.S_IFIFO if text == "-" else stat.S_IFREG
    with suppress(OSError, ValueError):  # a name, or a file that is missed where it is read
        mode = Path(text).stat().st_mode if text != "-" else mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"the {name} is a pipe or a device", where=text, fix="save what it gives to a file")


@lru_cache(maxsize=64)
def _setting(asked: Asked) -> Setting:
    """Made once for the table, the chart and the break-even, since a limit may have to be chosen."""
    usual = ask(
        asked.lengths,
        asked.model,
        gpu=asked.gpu,
        devices=asked.devices,
        minibatch=asked.minibatch,
        max_tokens=asked.limit or 0,
        minibatches=asked.minibatches,
        price=asked.price,
    )
    setting = replace(usual, cost=replace(usual.cost, cluster=_cluster(asked, usual))) if asked.network else usual
    return limit.chosen(setting) if asked.limit is None else setting


def _cluster(asked: Asked, setting: Setting) -> Cluster:
    return replace(setting.cost.cluster, nic_bandwidth=asked.network * 1e9 / 8)


@lru_cache(maxsize=16)
def _loaded(name: str) -> Trace:
    return load(name)
