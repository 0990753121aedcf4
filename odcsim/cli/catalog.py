"""`odcsim catalog`: which GPUs and models there are, and what each of their figures rests on."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcsim.catalog import Figure, Source
    from odcsim.model import Model


def add(commands: Any) -> None:
    parser = commands.add_parser("catalog", help="list GPUs and models, or show one with its sources")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="every GPU and model by name")
    listing.set_defaults(run=_list)
    show = actions.add_parser("show", help="one GPU, model or config.json: every figure, its source and date")
    show.add_argument("name", metavar="NAME", help="a GPU, a model, or the path of a TOML file or of a config.json")
    show.set_defaults(run=_show)
    for action in (listing, show):
        action.add_argument("--json", action="store_true", help="print JSON")


def _print_json(data: dict[str, Any]) -> None:
    import json

    print(json.dumps({"schema": 1, **data}, indent=2))


def _list(args: argparse.Namespace) -> None:
    from odcsim import catalog

    gpus = [catalog.gpu(name) for name in catalog.gpu_names()]
    models = [catalog.model(name) for name in catalog.model_names()]
    if args.json:
        return _print_json({"gpus": catalog.gpu_names(), "models": catalog.model_names()})
    print(f"{'GPU':<24}{'peak':>8}{'matmul':>8}{'memory':>8}{'links':>8}{'network':>9}")
    print(f"{'':<24}{'TFLOP/s':>8}{'TFLOP/s':>8}{'GB':>8}{'GB/s':>8}{'Gb/s':>9}")
    for g in gpus:
        rates = f"{g.peak_flops / 1e12:>8.0f}{g.matmul_flops / 1e12:>8.0f}{g.memory_bytes / 1e9:>8.0f}"
        print(f"{g.name:<24}{rates}{g.link_bandwidth / 1e9:>8.4g}{g.nic_bandwidth * 8 / 1e9:>9.0f}")
    print(f"\n{'model':<24}{'params':>8}{'active':>8}{'layers':>8}{'layer':>8}{'even at':>9}")
    print(f"{'':<24}{'B':>8}{'B':>8}{'':>8}{'MB':>8}{'tokens':>9}")
    for m in models:
        sizes = f"{_short(m.parameters / 1e9)}{_short(m.active_parameters / 1e9)}{m.layers:>8}"
        print(f"{m.name:<24}{sizes}{_short(m.layer_bytes() / 1e6)}{_even(m):>9}")
    print("\neven at: sample length whose attention costs as much as the matmuls, where every layer attends fully")
    return None


def _short(value: float) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 0.1 else 4
    return f"{value:>8.{digits}f}"


def _even(model: "Model") -> str:
    return f"{model.even_length:.0f}" if model.full_layers == model.layers else "-"


def _show(args: argparse.Namespace) -> None:
    from odcsim import catalog

    if args.name.lower() in catalog.gpu_names() or catalog.is_gpu_file(args.name):
        figures = catalog.gpu_figures(args.name)
        return _show_gpu(catalog.gpu_name(args.name), catalog.gpu_title(args.name), figures, args.json)
    return _show_model(_model(args.name), catalog.model_source(args.name), args.name, args.json)


def _model(name: str) -> "Model":
    """A model, where an unknown name may also have meant a GPU."""
    from odcsim import catalog
    from odcsim.errors import InputError

    try:
        return catalog.model(name)
    except InputError as error:
        if not error.problem.startswith("unknown model '"):
            raise
        fix = catalog.hint(name, catalog.gpu_names() + catalog.model_names())
        raise InputError(error.problem.replace("model", "GPU or model", 1), fix=fix) from error


def _source(source: "Source") -> dict[str, str]:
    return {"source": source.title, "url": source.url, "as_of": source.as_of}


def _show_gpu(name: str, title: str, figures: "list[Figure]", as_json: bool) -> None:
    if as_json:
        rows = {f.name: {"value": f.value, "unit": f.unit, "kind": f.kind} | _source(f.source) for f in figures}
        return _print_json({"kind": "gpu", "name": name, "title": title, "figures": rows})
    print(f"{name}: {title}")
    for f in figures:
        print(f"  {f.name:<18}{f.value:>8g} {f.unit:<8}{f.kind:<10}{f.source.as_of}  {f.source.title}")
    for url in dict.fromkeys(f.source.url for f in figures if f.source.url):
        print(f"  {url}")
    return None


def _show_model(model: "Model", source: "Source | None", path: str, as_json: bool) -> None:
    from dataclasses import asdict

    shape, derived = asdict(model), _derived(model)
    shape.pop("name")
    origin = _source(source) if source else {"source": path, "url": "", "as_of": ""}
    if as_json:
        return _print_json({"kind": "model", "name": model.name, "shape": shape, "derived": derived} | origin)
    print(model.name)
    for key, value in (shape | derived).items():
        if value or key == "tied":
            print(f"  {key:<30}{value!s:>18}")
    dated = f", {origin['as_of']}" if origin["as_of"] else ""
    print(f"  from {origin['source']}{dated} {origin['url']}".rstrip())
    return None


def _derived(model: "Model") -> dict[str, float | None]:
    """What follows from the shape; the even length only means something where every layer attends fully."""
    return {
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "layer_parameters": model.layer_parameters,
        "root_parameters": model.root_parameters,
        "layer_matmul_parameters": round(model.layer_matmul_parameters),
        "layer_bytes_bf16": model.layer_bytes(),
        "attention_flops_per_square": model.attention_flops_per_square,
        "even_length": round(model.even_length) if model.full_layers == model.layers else None,
    }
