"""What the controls of the page say, and links to it: a question, and the command that asks the same.

Anybody may have written a link: what it says becomes a question, or a line that says why not.
"""

import shlex
import stat
from argparse import ArgumentTypeError
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from odcsim.catalog import fits
from odcsim.decide import sharding, stock
from odcsim.decide.asking import lengths_of, setting_of
from odcsim.decide.comparison import FACTORS
from odcsim.decide.setting import Setting
from odcsim.errors import InputError
from odcsim.option import AMOUNT, FROM_ZERO, TEXT
from odcsim.question import FIELDS, LENGTHS, Question
from odcsim.recipe import CHOICES, Recipe, recipe_of
from odcsim.support.budget import memoize
from odcsim.trace import Trace

ROWS = 2**22  # of lengths, and of samples drawn of them, that each kind of result remembers: some 100 MB
LETTERS = 4096  # of a name
DEAREST = 10**9  # dollars
NOBODY = "none"  # where no trainer is asked for
OF_PAGE = {
    "room": replace(AMOUNT, control="tokens of a microbatch", stops=(0, *FACTORS)),
    "network": replace(FROM_ZERO, control="network between nodes", stops=(0, 25, 50, 100, 200, 400, 800)),
    "trainer": replace(TEXT, control="trainer", stops=(NOBODY, *stock.NAMES)),
}
OF_RECIPE = {name: option for name, option in CHOICES.items() if option.control}
CONTROLS = {name: option for name, option in FIELDS.items() if option.control} | OF_PAGE | OF_RECIPE
TEXTS = tuple(name for name, option in CONTROLS.items() if option.type is str and not option.stops)
STOPS = {name: option.stops for name, option in CONTROLS.items() if option.stops and option.type is not str}  # sliders
LISTS = {name: option.stops for name, option in CONTROLS.items() if option.stops and option.type is str}
READ = tuple(name for name in LENGTHS if name not in CONTROLS)  # how lengths are read, which a link holds
OPENED = {name: FIELDS[name] for name in (*READ, "profile")}  # what a page is opened with, and has no control for
LINKED = CONTROLS | OPENED
SHARDED = "sharding"  # every link says it, but those of before hybrid was the default between nodes: they mean full


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuestion(Question):
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
        usual = PageQuestion()
        changed = {name: self.value(name) for name in LINKED if self.value(name) != usual.value(name)}
        return f"?{urlencode(changed | {SHARDED: self.value(SHARDED)})}" if changed else ""

    def value(self, name: str) -> Any:
        """What a control says."""
        if name == "trainer":
            return self.trainer or NOBODY
        return self.recipe.value(name) if name in OF_RECIPE else getattr(self, name)

    @property
    def bare(self) -> "PageQuestion":
        """Without what changes dollars and hours alone, and no row."""
        usual = PageQuestion()
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
        return self.recipe.by(**{name: value for name, value in known.items() if name not in OF_RECIPE})

    @property
    def setting(self) -> Setting:
        for name in (*TEXTS, "profile"):
            _check_named(name, getattr(self, name) or "")
        return _setting(self)

    @property
    def command(self) -> str:
        """For a terminal. A network of one's own is a file, here one that bash makes up."""
        words = ["odcsim", "compare", self.trace]
        for name, option in FIELDS.items():
            value = self.limit if name == "max_tokens" else getattr(self, name)
            told = name in CONTROLS or name == "max_tokens" or (name in OPENED and value != option.usual)
            if told and name != "trace" and value is not None:
                words += option.argv(value)
        for name, option in OF_RECIPE.items():
            if self.profile is not None or self.value(name) != option.usual:
                words += option.argv(self.value(name))
        network = f" --cluster <(echo nic_gbit_s={self.network})" if self.network else ""
        return shlex.join(words) + network


def page_question_of(words: Mapping[str, Any]) -> PageQuestion:
    """By what controls and links say, choices of the recipe among it."""
    rest = {name: value for name, value in words.items() if name not in OF_RECIPE}
    rest |= {"trainer": None} if rest.get("trainer") == NOBODY else {}
    return PageQuestion(**rest, recipe=recipe_of({name: words[name] for name in OF_RECIPE if name in words}))


def read_link(search: Any) -> PageQuestion:
    """What a link holds; what it says that nobody knows is refused by name."""
    values: dict[str, Any] = {}
    for name, text in parse_qsl(_text("link", search or "?").removeprefix("?"), keep_blank_values=True):
        said = f"the link says {name:.40}={text:.80}"
        if (option := LINKED.get(name)) is None:
            raise InputError(said, fix=f"it may say {', '.join(LINKED)}")
        values[name] = text
        if option.type is bool:
            if text not in ("True", "False"):
                raise InputError(said, fix="it may be True or False")
            values[name] = text == "True"
        elif option.type is not str:
            try:
                values[name] = option.from_text(text)
            except ArgumentTypeError as error:
                raise InputError(said, fix=str(error)) from None
        if option.stops and values[name] not in option.stops:
            stops = ", ".join(f"{stop}" if isinstance(stop, str) else f"{stop:g}" for stop in option.stops)
            raise InputError(said, fix=f"it may be {stops}")
    return _question_of({SHARDED: "full"} | values if values else values)


def read_controls(values: Mapping[str, Any], before: PageQuestion | None = None) -> PageQuestion:
    """What the controls say: texts, a price, choices from lists, and of each slider the number of its stop. Lengths are
    read as `before`, where they are the same."""
    known = dict(values) | ({} if before is None else {"profile": before.profile})
    if before is not None and before.trace == values["trace"]:
        known |= {name: getattr(before, name) for name in READ}
    for name, stops in STOPS.items():
        # A browser may send a number or its text.
        places = {text: stop for place, stop in enumerate(stops) for text in (f"{place}", f"{float(place)}")}
        place = values[name]
        if isinstance(place, bool) or not isinstance(place, int | float | str) or f"{place}" not in places:
            raise InputError(f"{name} stands at {place!r:.40}", fix=f"its stops go from 0 to {len(stops) - 1}")
        known[name] = places[f"{place}"]
    for name, among in LISTS.items():
        if values[name] not in among:
            raise InputError(f"{name} is {values[name]!r:.40}", fix=f"it may be {', '.join(among)}")
    return _question_of(known)


def _question_of(values: Mapping[str, Any]) -> PageQuestion:
    price = values.get("price", 0)
    if price is None:
        raise InputError("there is no price", fix="give dollars per GPU-hour, or 0")
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price <= DEAREST:
        raise InputError(f"the price is {price!r:.40}", fix="give dollars per GPU-hour, or 0")
    texts = {name: _text(name, text) for name, text in values.items() if name in TEXTS or isinstance(text, str)}
    return page_question_of(dict(values) | texts)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"there is no {name}", fix="give a name or a file")
    if len(value) > LETTERS:
        raise InputError(f"the {name} has {len(value):,} letters", fix="give the name of something that is there")
    return value


def rows(setting: Setting) -> int:
    """What of a setting takes memory: the lengths that it holds, and the samples that it draws."""
    return len(setting.trace.lengths) + setting.minibatches * setting.batch


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


@memoize(ROWS, lambda found, _: rows(found))
def _setting(asked: PageQuestion) -> Setting:
    """Made once for the table, the chart and the break-even, since a limit may have to be chosen."""
    words = {f.name: getattr(asked, f.name) for f in fields(Question)} | {name: FIELDS[name].usual for name in READ}
    known = {"trace": asked.lengths, "max_tokens": asked.limit or 0, "recipe": asked.measured}
    setting = setting_of(Question(**words | known))
    if asked.network:
        cluster = replace(setting.cost.cluster, nic_bandwidth=asked.network * 1e9 / 8)
        setting = replace(setting, cost=replace(setting.cost, cluster=cluster))
    return sharding.with_limit(setting) if asked.limit is None else setting


@memoize(ROWS, lambda found, *_: len(found.lengths))
def _loaded(*asked: Any) -> Trace:
    return lengths_of(Question(**dict(zip(LENGTHS, asked, strict=True))))
