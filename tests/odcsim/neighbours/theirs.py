"""Functions out of a trainer's source, where its package is installed without what it imports."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def folder(package: str) -> Path:
    """Where its sources lie, of which nothing is imported."""
    if (spec := find_spec(package)) is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def defined(package: str, path: str, *names: str, **known: Any) -> dict[str, Any]:
    """Functions and classes of a file by name, without what functions are decorated with; they see what is `known`."""
    tree = ast.parse((folder(package) / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = {node.name: node for node in tree.body if isinstance(node, kinds) and node.name in names}
    for node in found.values():
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    space = {"__name__": __name__, **known}
    exec(compile(ast.Module([found[name] for name in names], []), path, "exec"), space)
    return space
