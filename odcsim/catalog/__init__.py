"""The shipped catalogue: GPUs and models by name, each figure with its kind, source and date.

The data are the TOML files beside this one; nothing is fetched. A model may also be a path to a `config.json`,
a GPU one to a TOML file of the user's own.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcsim.catalog.estimates.rates import family_of
from odcsim.catalog.hf_config import from_config, read_config
from odcsim.cluster import GPU, read_toml
from odcsim.errors import InputError, misspelled, nearest
from odcsim.model import Model
from odcsim.support.values import Given

if TYPE_CHECKING:
    from odcsim.catalog.fits import estimate, profile_for

__all__ = [
    "Figure",
    "Source",
    "estimate",
    "gpu",
    "gpu_figures",
    "gpu_names",
    "gpu_title",
    "gpu_toml",
    "model",
    "model_names",
    "model_source",
    "profile_for",
]

# Name in gpus.toml, field of GPU, factor to the field's unit, and the file's unit.
_GPU_FIGURES = (
    ("peak_tflops", "peak_flops", 1e12, "TFLOP/s"),
    ("matmul_tflops", "matmul_flops", 1e12, "TFLOP/s"),
    ("memory_gb", "memory_bytes", 1e9, "GB"),
    ("memory_tb_s", "memory_bandwidth", 1e12, "TB/s"),
    ("link_gb_s", "link_bandwidth", 1e9, "GB/s"),
    ("nic_gbit_s", "nic_bandwidth", 1e9 / 8, "Gb/s"),
    ("devices_per_node", "devices_per_node", 1, ""),
)
GIVEN = "given"
CLOCKED = 1.25  # times its datasheet's FLOP/s that a card may reach, which runs over the clock that it states
_HUB = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?", re.ASCII)  # an id of Hugging Face's hub, with its owner or without
_LETTERS = re.compile(r"[a-z]*")
_BRAND = re.compile(r"nvidia|geforce|rtx|ascend|[\s_-]")  # what people write of a GPU's name or leave out
_FILE = re.compile(r"[a-z0-9][\w-]{0,30}", re.ASCII)  # a name that a file may have
LIST = "see 'odcsim catalog list'"
OTHERS = frozenset(  # GPUs that are made and are not in the catalogue
    "a2 a10 a10g a16 a30 a40 a4000 a5000 b100 gb10 gh200 l40 mi100 mi210 mi250 mi250x mi300a "
    "rtx3080 rtx4080 rtx5080 rtx6000 rtx-a4000 rtx-a5000".split()
)
_TUNED = re.compile(
    r"-(?:instruct|it|base|chat|pt|thinking|sft|dpo|think)(?:-\d{2,4}){0,2}$|-(?:\d{2,4})(?:-\d{2,4})?$"
)
_SHAPE = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True, slots=True)
class Source:
    title: str
    url: str
    as_of: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the catalogue, in the unit it is published in, and what it rests on."""

    name: str
    value: float
    unit: str
    kind: str  # datasheet, measured, assumed, or given in a file of the user's own
    source: Source


@cache
def _load(file: str) -> Mapping[str, Any]:
    # Not importlib.resources: its first use costs 7 ms, more than reading the file.
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def _source(file: str, name: str) -> Source:
    row = _load(file)["sources"][name]
    return Source(row["title"], row["url"], str(row["as_of"]))


def gpu_names() -> list[str]:
    return list(_load("gpus.toml")["gpus"])


def _gpu_row(name: str) -> tuple[str, Mapping[str, Any]]:
    rows = _load("gpus.toml")["gpus"]
    key = name.lower()
    if key in rows:
        return key, rows[key]
    if is_gpu_file(name):
        return _own_gpu(Path(name))
    near = difflib.get_close_matches(key, rows, n=1, cutoff=0.0)[0]
    file = f"{key if _FILE.fullmatch(key) else 'mine'}.toml"
    copy = f"edit a copy: 'odcsim catalog show {near} --toml > {file}', then name {file} as the GPU"
    raise InputError(f"unknown GPU '{_short(name)}'", fix=f"{hint(name, gpu_names())} (or {copy})")


def is_gpu_file(name: str) -> bool:
    return name.lower().endswith(".toml")


def _own_gpu(path: Path) -> tuple[str, Mapping[str, Any]]:
    """All figures of a GPU, or those in which it is not `like` one of the catalogue. It is called like its file."""
    where, name, content = str(path), path.stem.lower(), read_toml(path, "a GPU's")
    if name in gpu_names():
        # Seconds that were published for that one would be taken for those of this one.
        raise InputError(f"'{name}' is a GPU of the catalogue", where=where, fix="give the file another name")
    like, title = (Given(key, content.pop(key, ""), where).text() for key in ("like", "title"))
    if like and like.lower() not in gpu_names():
        raise InputError(f"like is '{_short(like)}'", where=where, fix=hint(like, gpu_names()))
    row = dict(_gpu_row(like)[1]) | {"like": like.lower()} if like else {}
    known = {entry: None if entry == "devices_per_node" else 1e-6 for entry, *_ in _GPU_FIGURES}
    for key, value in content.items():
        if key not in known:
            raise InputError(f"unknown key '{_short(key)}'", where=where, fix=nearest(key, [*known, "like", "title"]))
        given, least = Given(key, value, where), known[key]
        row[key] = [given.whole() if least is None else given.number(least), GIVEN, where]
    if missing := [key for key in known if key not in row]:
        fix = f'add {"it" if len(missing) == 1 else "them"}, or a GPU it is like: like = "h100"'
        raise InputError(f"no {', '.join(missing)}", where=where, fix=fix)
    peak, best = row["peak_tflops"][0], row["matmul_tflops"][0]
    if best > CLOCKED * peak:
        fix = f"say matmul_tflops as well, as measured: GPUs of the catalogue reach {peak / 2:.0f} to {peak:.0f}"
        raise InputError(f"matmul_tflops is {best:g}, over peak_tflops {peak:g}", where=where, fix=fix)
    return name, row | {"title": title or f"figures of {path.name}{f', else of {like}' if like else ''}"}


def gpu(name: str) -> GPU:
    """A GPU of the catalogue (case does not matter), or of a TOML file."""
    key, row = _gpu_row(name)
    figures = GPU(name=key, **_figures_of(row))
    assumed = tuple(field for entry, field, *_ in _GPU_FIGURES if row[entry][1] == "assumed")
    return replace(figures, family=family_of(row.get("like", known_as(figures))), assumed=assumed)


def known_as(gpu: GPU) -> str:
    """The catalogue's name of a GPU that has these figures, whatever somebody calls it; else what it is called."""
    if gpu.name in gpu_names():
        return gpu.name
    mine = {field: getattr(gpu, field) for _, field, *_ in _GPU_FIGURES}
    return next((name for name in gpu_names() if _figures_of(_gpu_row(name)[1]) == mine), gpu.name)


def _figures_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """By the fields of a GPU, in their units."""
    return {field: row[entry][0] * factor for entry, field, factor, _ in _GPU_FIGURES}


def gpu_name(name: str) -> str:
    return _gpu_row(name)[0]


def gpu_title(name: str) -> str:
    return str(_gpu_row(name)[1]["title"])


def gpu_figures(name: str) -> list[Figure]:
    """Every figure of a GPU."""
    _, row = _gpu_row(name)
    figures = []
    for entry, _, _, unit in _GPU_FIGURES:
        value, kind, source = row[entry]
        where = Source(source, "", "") if kind == GIVEN else _source("gpus.toml", source)
        figures.append(Figure(entry, value, unit, kind, where))
    return figures


def gpu_toml(name: str) -> str:
    """A file for `--gpu` that describes this GPU, to edit: what nobody uncomments is as it is here."""
    key, _ = _gpu_row(name)
    if key not in gpu_names():
        raise InputError("is a GPU's file already", where=name, fix="edit a copy of it")
    head = ["# Uncomment what differs, and give this file for --gpu: it is called like the file."]
    head += [f'like = "{key}"', f'# title = "{gpu_title(key)}"']
    rows = [(f"# {f.name} = {f.value:g}", f"{f.unit or 'GPUs'}, {f.kind}") for f in gpu_figures(key)]
    return "\n".join([*head, *(f"{figure:<24} # {about}" for figure, about in rows)]) + "\n"


@cache
def _models() -> Mapping[str, Mapping[str, Any]]:
    """Their rows by name, those of one row beside each other."""
    rows: dict[str, Mapping[str, Any]] = {}
    for name, row in _load("models.toml")["models"].items():
        rows |= dict.fromkeys((name, *row.get("also", ())), row)
    return rows


def model_names() -> list[str]:
    return list(_models())


def _of_hub(text: str) -> str:
    """The catalogue's name of `Qwen/Qwen3-8B` and the like, also of what was tuned from it; else the text itself.

    A file or folder of that name comes first.
    """
    if _HUB.fullmatch(text) is None or text.endswith(".json") or os.path.exists(text):  # noqa: PTH110 - never raises
        return text
    last = text.rpartition("/")[2].lower().removeprefix("c4ai-").removeprefix("meta-")
    for name in (last, last.removeprefix("deepseek-")):
        for known in (name, _TUNED.sub("", name)):
            if known in _models():
                return known
    return text


def model(name_or_path: str) -> Model:
    """A model of the catalogue, by its name or a hub's id, or the one that a config.json (or its folder) describes."""
    name = _of_hub(name_or_path)
    row = _models().get(name.lower())
    if row is not None:
        shape = dict(zip(_SHAPE, row["shape"], strict=True))
        more = {"model_type": row["type"], "tie_word_embeddings": row["tied"], **row.get("more", {})}
        return from_config({**shape, **more}, name=name.lower(), where="models.toml")
    if _is_path(name):
        return read_config(name)
    fix = f"{hint(name.rpartition('/')[2], model_names())} (or give a path to a config.json)"
    raise InputError(f"unknown model '{_short(name)}'", fix=fix)


def hint(name: str, known: list[str]) -> str:
    """A name of the same family, or one that was misspelled; else where to see them all.

    What merely looks alike would be costed wrong: a 4090 is no l40s, an A10 no A100.
    """
    if name.lower() in OTHERS:
        return LIST
    if bare := [k for k in known if _BRAND.sub("", k) == _BRAND.sub("", name.lower())]:
        return f"did you mean '{bare[0]}'?"
    kin = [k for k in known if _family(k) == _family(name)]
    return misspelled(name, known) or misspelled(name, kin, alike=0.6) or LIST


def _family(name: str) -> str:
    """The letters that a name begins with: `qwen` of `qwen3-7b`."""
    letters = _LETTERS.match(name.lower())
    return letters[0] if letters else ""


def _short(name: str) -> str:
    return name if len(name) <= 80 else name[:77] + "..."


def model_source(name: str) -> Source | None:
    """Where a catalogue model's shape comes from; None for a path."""
    row = _models().get(_of_hub(name).lower())
    return None if row is None else _source("models.toml", row["source"])


def _is_path(text: str) -> bool:
    """Whether somebody meant a file: it is there, or the text looks like one (so that a missing one is named) and like
    no id of the hub."""
    if "\0" in text or len(text) > 4096:
        return False
    if text.endswith(".json") or os.path.exists(text):  # noqa: PTH110 - never raises
        return True
    return ("/" in text or "\\" in text) and _HUB.fullmatch(text) is None


def __getattr__(name: str) -> Any:
    """Seconds build on the catalogue, and load when first used."""
    if name in ("estimate", "profile_for"):
        return getattr(import_module("odcsim.catalog.fits"), name)
    raise AttributeError(f"module 'odcsim.catalog' has no attribute '{name}'")
