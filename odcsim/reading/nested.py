"""Fields inside fields, by names with dots: `meta.len` of `{"meta": {"len": 5}}`."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

DEEPEST = 4  # where somebody still looks for lengths


def is_inside(name: str, names: Collection[str]) -> bool:
    """Whether `name` leads into one of the columns and is none itself."""
    return name not in names and "." in name and name.partition(".")[0] in names


def head(name: str, names: Collection[str]) -> str:
    """The column that holds it."""
    return name.partition(".")[0] if is_inside(name, names) else name


def picked(record: Mapping[str, Any], name: str) -> Any:
    """What is there; a KeyError names the way as it was given."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(name)
        value = value[part]
    return value


def counts(record: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The names with dots under which a row has what may be a length."""
    for name, value in record.items():
        if isinstance(value, Mapping) and before.count(".") < DEEPEST:
            yield from counts(value, f"{before}{name}.")
        elif before and type(value) is int and value > 0:
            yield f"{before}{name}"
