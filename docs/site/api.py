"""Reference of the public names, read from the sources without running them: what `__all__` of these modules has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import griffe

ROOT = Path(__file__).parents[2]
MODULES = {
    "odcsim": (
        "odcsim",
        "odcsim.core",
        "odcsim.reading",
        "odcsim.catalog",
        "odcsim.balance",
        "odcsim.timeline",
        "odcsim.plots",
    ),
    "odc_engine": (
        "odc_engine",
        "odc_engine.trainers",
        "odc_engine.trainers.titan",
        "odc_engine.trainers.verl",
    ),
}
ONE_LINE = 90  # characters of a signature, over which each parameter has its own


def page(package: str) -> str:
    """A section for each module, with the names that no section before it has."""
    import griffe

    loaded = griffe.load(package, search_paths=[ROOT])
    parts, told = [f"# Python: `{package}`", "These names stay as they are within a major version."], set[str]()
    for module in MODULES[package]:
        inside = loaded if module == package else loaded[module.removeprefix(f"{package}.")]
        new = [name for name in sorted(inside.exports, key=str.lower) if _home(inside[name]).path not in told]
        told |= {_home(inside[name]).path for name in new}
        first = (inside.docstring.value if inside.docstring else "").partition("\n\n")[0]
        parts += [f"## {module}", first, *(text for name in new for text in _entry(name, _home(inside[name])))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _home(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if found.is_alias else found


def _entry(name: str, found: griffe.Object) -> Iterator[str]:
    yield f"### {name}"
    if found.is_class or found.is_function:
        yield f"```python\n{_signature(name, found)}\n```"
    elif found.is_attribute:
        yield f"```python\n{name} = {found.value}\n```"
    yield found.docstring.value if found.docstring else ""
    for member in found.members.values() if found.is_class else ():
        if not member.is_alias and member.is_function and not member.name.startswith("_"):
            yield f"**{name}.{member.name}**"
            yield f"```python\n{_signature(member.name, member)}\n```"
            yield member.docstring.value if member.docstring else ""


def _signature(name: str, found: griffe.Object) -> str:
    words, starred = [], False
    for parameter in [p for p in found.parameters if p.name != "self"]:
        if parameter.kind.value == "keyword-only" and not starred:
            words.append("*")
        starred |= parameter.kind.value in ("keyword-only", "variadic positional")
        words.append(_parameter(parameter))
    gives = f" -> {found.returns}" if found.is_function and found.returns is not None else ""
    line = f"{name}({', '.join(words)}){gives}"
    return line if len(line) <= ONE_LINE else f"{name}(\n    " + ",\n    ".join(words) + f",\n){gives}"


def _parameter(parameter: griffe.Parameter) -> str:
    stars = {"variadic positional": "*", "variadic keyword": "**"}.get(parameter.kind.value, "")
    text = stars + parameter.name
    text += f": {parameter.annotation}" if parameter.annotation is not None else ""
    return text if parameter.default is None or stars else f"{text} = {parameter.default}"
