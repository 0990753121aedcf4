"""The keys of a Hugging Face `config.json`, each read as what it is to be; null counts as absent, as it does there."""

from collections.abc import Mapping
from dataclasses import dataclass
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

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None or key in self.family.defaults

    def require(self, *keys: str) -> None:
        missing = [key for key in keys if not self.has(key)]
        if missing:
            fix = f"model_type '{self.kind}' needs it: complete the file, or pick a model of 'odcsim catalog list'"
            raise InputError(f"lacks {', '.join(missing)}", where=self.where, fix=fix)

    def number(self, key: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        given = self._given(key, self.family.defaults.get(key, default))
        if given.value is None:
            self.require(key)
        return given.whole(least, most)

    def flag(self, key: str, default: bool) -> bool:
        return self._given(key, default).flag()

    def items(self, key: str) -> list[Any]:
        return self._given(key, []).values()

    def refuse(self, key: str, fix: str) -> NoReturn:
        self._given(key, None).refuse(fix)

    def _given(self, key: str, default: Any) -> Given:
        value = self.data.get(key)
        return Given(key, default if value is None else value, self.where)
