"""What a `model_type` means, and how a `config.json` of it is read: values of the file, or what its family does."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from odcsim.errors import InputError
from odcsim.support.values import Given, shown

LARGEST = 100_000_000  # no size in a config comes near; beyond it a figure is a slip, and byte counts stop being exact
MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Family:
    """What one `model_type` means where its config is silent: a row of families.toml."""

    tied: bool = False
    bias: bool = False  # queries, keys and values carry one
    out_bias: bool = False
    query_key_norm: bool = False
    wide_norms: bool = False  # those of queries and keys are as wide as all heads together
    norms: int = 2  # per layer, each as wide as the hidden state
    gated: bool = False
    latent: bool = False
    sinks: bool = False
    expert_bias: bool = False
    expert_size: str = ""  # the key that holds an expert's intermediate size; empty: a dense model
    layout: str = "full"  # which layers attend how: full, upper, all, alternate, pattern, chunks or linear
    defaults: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    plain: bool = False  # the MLP has two matrices and no gate
    widens: int = 0  # its width in hidden widths where no key says it; zero: a key has to
    mlp_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    multi_query: bool = False  # one head of keys and values, unless `multi_query` is false
    positions: int | None = None  # learnt ones beyond `max_position_embeddings`; None: no position is learnt
    keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # its own names of keys
    mixer: str = ""  # attention that heads and ranks alone do not tell: a function of hf_attention.py
    some_dense: bool = False  # of its models some have no experts
    router_bias: bool = False  # one number for each expert
    bare: bool = False  # norms have no parameters


@cache
def table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))


@cache
def families() -> Mapping[str, Family]:
    """Every `model_type` that is read, in the order in which they are listed."""
    rows = table()["families"]
    known: dict[str, Family] = {}
    for name, row in rows.items():
        facts, like = row, row.get("like")
        while like is not None:
            facts, like = rows[like] | facts, rows[like].get("like")
        family = Family(**{key: value for key, value in facts.items() if key not in ("like", "also")})
        known |= dict.fromkeys((name, *row.get("also", ())), family)
    return MappingProxyType(known)


@dataclass(frozen=True, slots=True)
class Config:
    """What a file says, and where it is silent, what its family (of model_type `kind`) does. Null counts as absent, as
    it does in the library."""

    data: Mapping[str, Any]
    family: Family
    kind: str
    where: str

    def name_of(self, key: str) -> str:
        """The name of this key in the file: the family's own where there is one and the usual one is absent."""
        return key if self.data.get(key) is not None else self.family.keys.get(key, key)

    def has(self, key: str) -> bool:
        return self.data.get(self.name_of(key)) is not None or key in self.family.defaults

    def require(self, keys: Sequence[str]) -> None:
        missing = [self.name_of(key) for key in keys if not self.has(key)]
        if missing:
            fix = f"complete the file, as model_type '{self.kind}' needs, or pick a model of 'odcsim catalog list'"
            raise InputError(f"lacks {', '.join(missing)}", where=self.where, fix=fix)

    def given(self, key: str, default: Any = None) -> Given:
        value = self.data.get(name := self.name_of(key))
        return Given(name, default if value is None else value, self.where)

    def flag(self, key: str, default: bool) -> bool:
        return self.given(key, default).flag()

    def number(self, key: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        given = self.given(key, self.family.defaults.get(key, default))
        if isinstance(given.value, list) and given.value and all(one == given.value[0] for one in given.value):
            given = Given(given.name, given.value[0], self.where)  # the same in every layer
        if given.value is None:
            self.require([key])
        return given.whole(least, most)

    def layer_types(self, kinds: Sequence[str], layers: int, key: str = "layer_types") -> list[str]:
        """The kind of every layer where the file lists them, each one of `kinds`; else nothing."""
        types = self.given(key, [])
        names: list[str] = types.values()
        unknown = next((kind for kind in names if kind not in kinds), None)
        if unknown is not None:
            types.refuse(f"{shown(unknown)} is none of {', '.join(kinds)}")
        if names and len(names) != layers:
            fix = f"num_hidden_layers is {layers}: give as many"
            raise InputError(f"{key} names {len(names)} layers", where=self.where, fix=fix)
        return names
