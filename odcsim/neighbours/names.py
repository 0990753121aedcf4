"""TrainerNames of settings that each trainer has, and their defaults: by a table of one version, or where another is
installed, by its own classes."""

import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from odcsim.neighbours.values import flatten
from odcsim.trace import DPO, GRPO, SFT

FOLDER = Path(__file__).with_name("names")
ALL = "defaults"  # of a table: what all kinds of training have


@dataclass(frozen=True, slots=True)
class TrainerNames:
    """All that a trainer takes. `usual`: what it takes where nobody says, if its own classes told; else readers know.
    `prefixes`: of names that others have, of which only the beginning is known."""

    known: Collection[str] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    version: str = ""


@cache
def names_of(trainer: str, kind: str) -> TrainerNames:
    """Of one kind of training; none of a trainer whose names nobody has written down."""
    if not (FOLDER / f"{trainer}.toml").is_file():
        return TrainerNames()
    table = tomllib.loads((FOLDER / f"{trainer}.toml").read_text(encoding="utf-8"))
    if (there := installed(trainer)) and there != table.get("version"):
        own = own_names(trainer, kind)
        return TrainerNames(frozenset(own), {name: value for name, value in own.items() if is_plain(value)}, (), there)
    listed = [*table.get("names", []), *table.get(f"{kind}_names", [])]
    parts = [table.get(part, {}) for part in (ALL, kind, "off", f"{kind}_off")]
    known = [*listed, *(name for part in parts for name, _ in flatten(part))]
    return TrainerNames(frozenset(known), {}, tuple(table.get("prefixes", [])), str(table.get("version", "")))


def installed(trainer: str) -> str:
    """The version of its package that is here; empty where none is, or where it has no classes that tell."""
    if trainer not in CLASSES:
        return ""
    try:
        return version(CLASSES[trainer][0])
    except PackageNotFoundError:
        return ""


def own_names(trainer: str, kind: str) -> dict[str, Any]:
    """TrainerNames and defaults as its own classes have them."""
    return dict(sorted(CLASSES[trainer][1](kind)))


def is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _fields(*classes: Any) -> Iterator[tuple[str, Any]]:
    for of in classes:
        yield from ((one.name, None if one.default is MISSING else one.default) for one in fields(of))


def _trl(kind: str) -> Iterator[tuple[str, Any]]:
    """Its own, and those of its script, which has more for rewards."""
    trl, script = import_module("trl"), import_module(f"trl.scripts.{kind}")
    own = getattr(script, f"{kind.upper()}ScriptArguments", trl.ScriptArguments)
    return _fields(trl.ModelConfig, own, getattr(trl, f"{kind.upper()}Config"))


def _transformers(_: str) -> Iterator[tuple[str, Any]]:
    yield from (("model_name_or_path", ""), ("config_file", ""))
    yield from _fields(import_module("transformers").TrainingArguments)


def _llama_factory(_: str) -> Iterator[tuple[str, Any]]:
    import os

    os.environ.setdefault("DISABLE_VERSION_CHECK", "1")  # of transformers, of which nothing is run
    return _fields(*import_module("llamafactory.hparams.parser")._TRAIN_ARGS)


def _axolotl(_: str) -> Iterator[tuple[str, Any]]:
    """Its own, and those of its plugins."""
    models = [import_module("axolotl.utils.schemas.config").AxolotlInputConfig]
    spec = find_spec("axolotl")
    for path in sorted(Path(((spec and spec.submodule_search_locations) or [""])[0]).glob("integrations/*/args.py")):
        try:
            module = import_module(f"axolotl.integrations.{path.parent.name}.args")
        except ImportError:  # a plugin whose own package is not here
            continue
        models += [one for one in vars(module).values() if hasattr(one, "model_fields") and one.model_fields]
    for model in models:
        yield from ((name, None if of.is_required() else of.default) for name, of in model.model_fields.items())


def _verl(kind: str) -> Iterator[tuple[str, Any]]:
    hydra, config = import_module("hydra"), import_module("omegaconf").OmegaConf
    spec = find_spec("verl")
    folder = str(Path(((spec and spec.submodule_search_locations) or [""])[0]) / "trainer/config")
    with hydra.initialize_config_dir(folder, version_base=None):
        found = hydra.compose("ppo_trainer" if kind == GRPO else "sft_trainer_engine")
    return flatten(config.to_container(found, resolve=False))


def _torchtitan(_: str) -> Iterator[tuple[str, Any]]:
    def nested(of: Any, within: str = "") -> Iterator[tuple[str, Any]]:
        for one in fields(of):
            value = one.default if one.default is not MISSING else None
            if one.default_factory is not MISSING:
                value = one.default_factory()
            if is_dataclass(value):
                yield from nested(type(value), f"{within}{one.name}.")
            else:
                yield f"{within}{one.name}", value

    yield from (("module", ""), ("config", ""), ("compile.enable", False))
    yield from nested(import_module("torchtitan.trainer").Trainer.Config)


# The package of each trainer whose classes tell, and how they are asked.
CLASSES: dict[str, tuple[str, Callable[[str], Iterator[tuple[str, Any]]]]] = {
    "trl": ("trl", _trl),
    "accelerate": ("transformers", _transformers),
    "llamafactory": ("llamafactory", _llama_factory),
    "axolotl": ("axolotl", _axolotl),
    "verl": ("verl", _verl),
    "torchtitan": ("torchtitan", _torchtitan),
}
KINDS = {"trl": (SFT, DPO, GRPO), "verl": (SFT, GRPO)}  # others have one
