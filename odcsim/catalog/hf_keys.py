"""The keys of a Hugging Face `config.json`, each read as what it is to be; null counts as absent, as it does there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from odcsim.catalog.hf_families import Family
from odcsim.errors import InputError
from odcsim.support.checked import Given

LARGEST = 100_000_000  # no size in a config comes near; beyond it a figure is a slip, and byte counts stop being exact


@dataclass(frozen=True, slots=True)
class Config:
    """What a file says, and where it is silent, what its family (of model_type `kind`) does."""

    data: Mapping[str, Any]
    family: Family
    kind: str
    where: str

    def named(self, key: str) -> str:
        """The name of this key in the file: the family's own where there is one and the usual one is absent."""
        return key if self.data.get(key) is not None else self.family.keys.get(key, key)

    def has(self, key: str) -> bool:
        return self.data.get(self.named(key)) is not None or key in self.family.defaults

    def within(self, key: str) -> "Config":
        """What an object in the file says; nothing where there is none."""
        inner = self._given(key, {})
        return replace(self, data=inner.mapping())

    def require(self, *keys: str) -> None:
        missing = [self.named(key) for key in keys if not self.has(key)]
        if missing:
            fix = f"complete the file, as model_type '{self.kind}' needs, or pick a model of 'odcsim catalog list'"
            raise InputError(f"lacks {', '.join(missing)}", where=self.where, fix=fix)

    def number(self, key: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        given = self._given(key, self.family.defaults.get(key, default))
        if given.value is None:
            self.require(key)
        return given.whole(least, most)

    def flag(self, key: str, default: bool) -> bool:
        return self._given(key, default).flag()

    def one_of(self, key: str, few: Sequence[str]) -> str:
        """One of these texts; the first where the file is silent."""
        return self._given(key, few[0]).one_of(few)

    def items(self, key: str) -> list[Any]:
        return self._given(key, []).values()

    def refuse(self, key: str, fix: str) -> NoReturn:
        self._given(key, None).refuse(fix)

    def _given(self, key: str, default: Any) -> Given:
        value = self.data.get(name := self.named(key))
        return Given(name, default if value is None else value, self.where)
