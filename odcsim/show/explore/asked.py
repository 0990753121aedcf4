"""What somebody set on the page: a question, the link that carries it, and the command that asks the same."""

import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from odcsim.catalog import fits
from odcsim.cluster import Cluster
from odcsim.decide import sharding, stock
from odcsim.decide.asking import lengths_of, setting_of
from odcsim.decide.comparison import FACTORS
from odcsim.decide.setting import Setting
from odcsim.errors import InputError
from odcsim.option import AMOUNT, FROM_ZERO, TEXT
from odcsim.question import FIELDS, LENGTHS, Question
from odcsim.recipe import CHOICES, Recipe, recipe_of
from odcsim.support.remembered import remembered
from odcsim.trace import Trace

ROWS = 2**22  # of lengths, and of samples drawn of them, that each kind of result remembers: some 100 MB
NOBODY = "none"  # where no trainer is asked for
BESIDE = {
    "room": replace(AMOUNT, usual=0.0, control="tokens of a microbatch", stops=(0, *FACTORS)),
    "network": replace(FROM_ZERO, usual=0, control="network between nodes", stops=(0, 25, 50, 100, 200, 400, 800)),
    "trainer": replace(TEXT, usual=NOBODY, control="trainer", stops=(NOBODY, *stock.NAMES)),
}
CHOSEN = {name: about for name, about in CHOICES.items() if about.control}
CONTROLS = {name: about for name, about in FIELDS.items() if about.control} | BESIDE | CHOSEN
READ = tuple(name for name in LENGTHS if name not in CONTROLS)  # how lengths are read, which a link holds
OPENED = (*READ, "profile")  # what a page is opened with, and has no control for
LINKED = (*CONTROLS, *OPENED)
SHARDED = "sharding"  # every link says it, but those of before hybrid was the default between nodes: they mean full
TEXTS = tuple(name for name, about in CONTROLS.items() if about.type is str and not about.stops)
SLIDERS = tuple(name for name, about in CONTROLS.items() if about.stops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Question):
    """A question with what the page opens with, and with what only the page has."""

    trace: str = "longalign"
    model: str = "r1-distill-qwen-1.5b"
    gpu: str = "a100"
    minibatch: int = 4
    minibatches: int = 8
    price: float = 2.0
    epochs: float = 1.0
    room: float = 0.0  # a microbatch's limit over the longest sample; 0: as compare's
    network: int = 0  # Gb/s of a network card; 0: the GPU's usual one

    @property
    def search(self) -> str:
        """What a link holds of it: everything that is not as usual, and the sharding beside it."""
        usual = Asked()
        changed = {name: self.value(name) for name in LINKED if self.value(name) != usual.value(name)}
        return f"?{urlencode(changed | {SHARDED: self.value(SHARDED)})}" if changed else ""

    def value(self, name: str) -> Any:
        """What a control says."""
        if name == "trainer":
            return self.trainer or NOBODY
        return self.recipe.value(name) if name in CHOSEN else getattr(self, name)

    @property
    def bare(self) -> "Asked":
        """Without what changes dollars and hours alone, and no row."""
        usual = Asked()
        return replace(self, price=usual.price, epochs=usual.epochs)

    @property
    def lengths(self) -> Trace:
        for name in ("trace", "tokenizer"):
            _check_named(name, getattr(self, name) or "")
        return _loaded(*(getattr(self, name) for name in LENGTHS))

    @property
    def limit(self) -> int | None:
        """Of a microbatch; None: what memory and speed make best, as for `odcsim compare`."""
        return round(self.lengths.longest * self.room) if self.room else None

    @property
    def measured(self) -> Recipe:
        """The recipe, with what a profile was measured with, or a trainer's kernels, where no control says it."""
        known = fits.measured_by(self.profile) if self.profile else stock.assumed(self.trainer)
        return self.recipe.by(**{name: value for name, value in known.items() if name not in CHOSEN})

    @property
    def setting(self) -> Setting:
        for name in (*TEXTS, "profile"):
            _check_named(name, getattr(self, name) or "")
        return _setting(self)

    @property
    def command(self) -> str:
        """For a terminal. A network of one's own is a file, here one that bash makes up."""
        known = {name: getattr(self, name) for name in CONTROLS if name in FIELDS} | {"max_tokens": self.limit}
        known |= {name: value for name in OPENED if (value := getattr(self, name)) != FIELDS[name].usual}
        asked = [(name, known[name]) for name in FIELDS if name != "trace" and known.get(name) is not None]
        words = ["odcsim", "compare", self.trace]
        for name, value in asked:
            said = [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]
            words += [f"--{name.replace('_', '-')}", *said]
        for name in CHOSEN:
            told = self.profile is not None or self.value(name) != CHOICES[name].usual
            words += [CHOSEN[name].flag, self.value(name)] if told else []
        network = f" --cluster <(echo nic_gbit_s={self.network})" if self.network else ""
        return shlex.join(words) + network


def asked_of(words: Mapping[str, Any]) -> Asked:
    """By what controls and links say, choices of the recipe among it."""
    rest = {name: value for name, value in words.items() if name not in CHOSEN}
    rest |= {"trainer": None} if rest.get("trainer") == NOBODY else {}
    return Asked(**rest, recipe=recipe_of({name: words[name] for name in CHOSEN if name in words}))


def rows(setting: Setting) -> int:
    """What of a setting takes memory: the lengths that it holds, and the samples that it draws."""
    drawn = setting.minibatches * setting.batch
    return len(setting.trace.lengths) + drawn


def _check_named(name: str, text: str) -> None:
    """A page cannot wait for a pipe: nobody writes into the server's own, and what it gave would be gone. Links hold
    texts alone."""
    if not text.isascii() and text != text.encode(errors="replace").decode():
        raise InputError(f"the {name} has a name that is no text", where=text, fix="rename it")
    mode = stat.S_IFIFO if text == "-" else stat.S_IFREG
    with suppress(OSError, ValueError):  # a name, or a file that is missed where it is read
        mode = Path(text).stat().st_mode if text != "-" else mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"the {name} is a pipe or a device", where=text, fix="save what it gives to a file")


@remembered(ROWS, lambda found, _: rows(found))
def _setting(asked: Asked) -> Setting:
    """Made once for the table, the chart and the break-even, since a limit may have to be chosen."""
    words = {f.name: getattr(asked, f.name) for f in fields(Question)} | {name: FIELDS[name].usual for name in READ}
    known = {"trace": asked.lengths, "max_tokens": asked.limit or 0, "recipe": asked.measured}
    usual = setting_of(Question(**words | known))
    setting = replace(usual, cost=replace(usual.cost, cluster=_cluster(asked, usual))) if asked.network else usual
    return sharding.limited(setting) if asked.limit is None else setting


def _cluster(asked: Asked, setting: Setting) -> Cluster:
    return replace(setting.cost.cluster, nic_bandwidth=asked.network * 1e9 / 8)


@remembered(ROWS, lambda found, *_: len(found.lengths))
def _loaded(*asked: Any) -> Trace:
    return lengths_of(Question(**dict(zip(LENGTHS, asked, strict=True))))
