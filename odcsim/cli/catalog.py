"""`odcsim catalog`: which GPUs and models there are, and what each of their figures rests on."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odcsim.cli import options

if TYPE_CHECKING:
    from odcsim.catalog import Figure, Source
    from odcsim.model import Model

_GPU_WIDTHS, _MODEL_WIDTHS = (-24, 8, 8, 8, 8, 9), (-24, 8, 8, 8, 8, 11)
_GPU_HEAD = (
    ("GPU", "peak", "matmul", "memory", "links", "network"),
    ("", "TFLOP/s", "TFLOP/s", "GB", "GB/s", "Gb/s"),
)
_MODEL_HEAD = (
    ("model", "params", "active", "layers", "layer", "attention"),
    ("", "B", "B", "", "MB", "= matmuls"),
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "catalog",
        help="list GPUs and models, or show one with its sources",
        description="List the GPUs and models that odcsim knows, or show one with the source of each figure.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        help="list every GPU and model",
        description="List every GPU and model by name, with their main figures.",
        examples=("odcsim catalog list",),
    )
    listing.set_defaults(run=_list)
    show = actions.add_parser(
        "show",
        help="show one GPU or model: each figure, its source and date",
        description="Show every figure of one GPU or model, with its source and date.",
        examples=("odcsim catalog show h100", "odcsim catalog show l40s --toml"),
    )
    show.add_argument("name", metavar="NAME", help="GPU, model, TOML file of a GPU, or Hugging Face config.json")
    show.set_defaults(run=_show)
    listing.add_argument("--json", action="store_true", help="print JSON")
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--toml", action="store_true", help="print a GPU as a file for --gpu, to edit")


def _list(args: argparse.Namespace) -> None:
    from odcsim import catalog
    from odcsim.support import tables

    gpus = [catalog.gpu(name) for name in catalog.gpu_names()]
    models = [catalog.model(name) for name in catalog.model_names()]
    if args.json:
        return options.print_json({"schema": 1, "gpus": catalog.gpu_names(), "models": catalog.model_names()})
    rows: list[Sequence[str]] = [*_GPU_HEAD]
    for gpu in gpus:
        rates = [f"{rate:.0f}" for rate in (gpu.peak_flops / 1e12, gpu.matmul_flops / 1e12, gpu.memory_bytes / 1e9)]
        rows.append([gpu.name, *rates, f"{gpu.link_bandwidth / 1e9:.4g}", f"{gpu.nic_bandwidth * 8 / 1e9:.0f}"])
    print(*tables.lines(rows, _GPU_WIDTHS), "", sep="\n")
    rows = [*_MODEL_HEAD]
    for model in models:
        sizes = [_short(model.parameters / 1e9), _short(model.active_parameters / 1e9), str(model.layers)]
        even = f"{model.even_length:.0f}" if model.full_layers == model.layers else "-"
        rows.append([model.name, *sizes, _short(model.layer_bytes() / 1e6), even])
    print(*tables.lines(rows, _MODEL_WIDTHS), "", sep="\n")
    print("attention = matmuls: tokens of a sample from which on attention costs more than the matmuls")
    print("-: not every layer attends to all tokens")
    return None


def _short(value: float) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 0.1 else 4
    return f"{value:.{digits}f}"


def _show(args: argparse.Namespace) -> None:
    from odcsim import catalog
    from odcsim.errors import InputError

    name = args.name
    if args.toml:
        return print(catalog.gpu_toml(name), end="")
    if name.lower() in catalog.gpu_names() or catalog.is_gpu_file(name):
        return _show_gpu(catalog.gpu_name(name), catalog.gpu_title(name), catalog.gpu_figures(name), args.json)
    try:
        model = catalog.model(name)
    except InputError as error:  # which may also have meant a GPU
        if not error.problem.startswith("unknown model '"):
            raise
        fix = catalog.hint(name, catalog.gpu_names() + catalog.model_names())
        raise InputError(error.problem.replace("model", "GPU or model", 1), fix=fix) from error
    return _show_model(model, catalog.model_source(name), name, args.json)


def _source(source: "Source") -> dict[str, str]:
    return {"source": source.title, "url": source.url, "as_of": source.as_of}


def _show_gpu(name: str, title: str, figures: "list[Figure]", as_json: bool) -> None:
    from odcsim.support import tables

    if as_json:
        by_name = {f.name: {"value": f.value, "unit": f.unit, "kind": f.kind} | _source(f.source) for f in figures}
        return options.print_json({"schema": 1, "kind": "gpu", "name": name, "title": title, "figures": by_name})
    print(f"{name}: {title}")
    rows = [
        (f"  {f.name}", f"{f.value:g}", f" {f.unit}", f.kind, f.source.as_of, f"  {f.source.title}") for f in figures
    ]
    print(*tables.lines(rows, (-20, 8, -9, -10, 0, 0)), sep="\n")
    for url in dict.fromkeys(f.source.url for f in figures if f.source.url):
        print(f"  {url}")
    return None


def _show_model(model: "Model", source: "Source | None", path: str, as_json: bool) -> None:
    from dataclasses import asdict

    from odcsim.support import tables

    shape = asdict(model)
    derived = {  # what follows from the shape; the even length only means something where every layer attends fully
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "layer_parameters": model.layer_parameters,
        "root_parameters": model.root_parameters,
        "layer_matmul_parameters": round(model.layer_matmul_parameters),
        "layer_bytes_bf16": model.layer_bytes(),
        "attention_flops_per_square": model.attention_flops_per_square,
        "even_length": round(model.even_length) if model.full_layers == model.layers else None,
    }
    shape.pop("name")
    origin = _source(source) if source else {"source": path, "url": "", "as_of": ""}
    if as_json:
        known = {"schema": 1, "kind": "model", "name": model.name, "shape": shape, "derived": derived}
        return options.print_json(known | origin)
    print(model.name)
    rows = []
    equal = {"attention = matmuls at (tokens)": derived.pop("even_length")}
    for key, value in (shape | derived | equal).items():
        if value or key == "tied":
            if isinstance(value, tuple):
                value = ", ".join(" x ".join(f"{number:g}" for number in row) for row in value)
            counts = isinstance(value, int) and not isinstance(value, bool)
            rows.append((f"  {key}", f"{value:,}" if counts else str(value)))
    print(*tables.lines(rows, (-32, 18)), sep="\n")
    dated = f", {origin['as_of']}" if origin["as_of"] else ""
    print(f"  from {origin['source']}{dated} {origin['url']}".rstrip())
    return None
