"""What others may build on: the names that stay within a major version, by the one module they are imported from."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from sources import everything, modules

OURS = modules(everything())

PUBLIC = {
    "odcsim": """Advice Audit BreakEven Comparison Diagnosis Fitted Hang InputError Levers PlanCheck RolloutSteps
        Setting SweepRows Trace TrainerFlags advise ask audit break_even check compare diagnose fit flags levers load
        plan rl simulate sweep sweep_max_tokens write_report""",
    "odcsim.balance": """ALL NAMES POOL Assignment LearnedCosts Plan balance check_limit digest loss_tokens plan pooled
        runs_with weigh""",
    "odcsim.catalog": """Figure Source estimate gpu gpu_figures gpu_names gpu_title gpu_toml model model_names
        model_source profile_for""",
    "odcsim.core": "Builder Program Schedule Step Usage delays simulate usage",
    "odcsim.plots": """NAMES agreement bandwidth convergence document embed gains gantt idle lengths notebook pair parts
        ranks script slide speedups sweep worst_step""",
    "odcsim.reading": "draw",
    "odcsim.timeline": "About Block Timeline read write",
    "odc_engine": """BalancedBatches NO_TARGET OnDemand Packed Share Watcher agree check loss_tokens pack sample_mean
        token_mean watch""",
    "odc_engine.trainers": "BalancedMixin OnDemandMixin OnDemandRollouts",
    "odc_engine.trainers.titan": "BalancedTexts TitanMixin",
    "odc_engine.trainers.verl": "VerlMixin",
}
NAMES = {module: set(names.split()) for module, names in PUBLIC.items()}


def ours(name: str) -> bool:
    return name.partition(".")[0] in ("odcsim", "odc_engine")


def may(module: str, name: str) -> bool:
    """Whether a name of a module is public: one of its own, or a public module in it."""
    return name in NAMES.get(module, ()) or f"{module}.{name}" in NAMES or name == "__version__"


Taken = list[tuple[int, str]]  # lines and names


def private(code: str | ast.AST) -> Taken:
    """What a program takes of our packages that is not public."""
    return [(line, f"{module}.{name}") for line, module, name in _taken(code) if not may(module, name)]


def missing(code: str | ast.AST) -> Taken:
    """What it takes that is not there, also in a function that nobody called."""
    return [(line, f"{module}.{name}") for line, module, name in _taken(code) if not _is_there(module, name)]


def elsewhere(code: str | ast.AST) -> Taken:
    """What it takes that is public, by another path than the documented one."""
    return [(line, f"{module}.{name}") for line, module, name in _taken(code) if goes_around(module, name)]


def goes_around(module: str, name: str) -> bool:
    """Whether a module that is not public has the very thing that a public one of its package offers."""
    package = module.partition(".")[0]
    homes = [home for home in NAMES if home.partition(".")[0] == package and name in NAMES[home]]
    if not homes or module in homes or f"{module}.{name}" in OURS or not _is_there(module, name):
        return False
    return any(offered(module, name) is offered(home, name) for home in homes)


def offered(module: str, name: str) -> Any:
    """What is there by that name, without what `odcsim` puts around functions."""
    return inspect.unwrap(getattr(import_module(module), name))


def _is_there(module: str, name: str) -> bool:
    return f"{module}.{name}" in OURS or (module in OURS and hasattr(import_module(module), name))


def _taken(code: str | ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, module and name; of `import a.b` too, and of `plots.idle` after `from odcsim import plots`."""
    nodes = list(ast.walk(ast.parse(code) if isinstance(code, str) else code))
    known: dict[str, str] = {}  # modules of ours, by their names in the program
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in [alias for alias in node.names if ours(alias.name)]:
                module, _, last = name.name.rpartition(".")
                top = name.name.partition(".")[0]
                known[name.asname or top] = name.name if name.asname else top
                if module:
                    yield node.lineno, module, last
        elif isinstance(node, ast.ImportFrom) and ours(str(node.module)):
            for name in node.names:
                full = f"{node.module}.{name.name}"
                if full in OURS:
                    known[name.asname or name.name] = full
                yield node.lineno, str(node.module), name.name
    for node in nodes if known else ():
        if isinstance(node, ast.Attribute) and (module := _module(node.value, known)):
            yield node.lineno, module, node.attr


def _module(node: ast.expr, known: dict[str, str]) -> str | None:
    """The module that an expression names."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and (outer := _module(node.value, known)):
        full = f"{outer}.{node.attr}"
        return full if full in OURS else None
    return None
