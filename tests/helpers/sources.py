"""The modules of both packages, and what each imports, read from their source."""

import ast
import sys
from functools import cache
from pathlib import Path

from scripts import ROOT


def modules(package: str) -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


ODCSIM, ENGINE = modules("odcsim"), modules("odc_engine")


def run_time(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Every import, in functions too, but not those for type checkers alone."""
    found, nodes = [], [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes += node.orelse
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        nodes += ast.iter_child_nodes(node)
    return found


@cache
def imports(path: Path) -> frozenset[str]:
    """Full names of what a file imports; of `from a import b` both, since b may be a module."""
    found = set()
    for node in run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        else:
            assert node.level == 0, f"{path} imports relatively"
            found |= {str(node.module), *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(found)


def outside(path: Path) -> set[str]:
    """Packages a file imports that Python does not bring."""
    return {name.partition(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)


def inside(path: Path, known: dict[str, Path]) -> set[str]:
    return {name for name in imports(path) if name in known}
