"""A torch whose FSDP2 lacks a name that the engine uses is refused, by `doctor` and where OnDemand is made."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import work
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group, _fsdp_state
from torch.distributed.tensor import DTensor
from work import Case

import odc_engine
from odc_engine import OnDemand
from odc_engine.doctor import abilities
from odc_engine.errors import FOR_TORCH
from odc_engine.fsdp import before_213, inside
from odc_engine.fsdp.collective import Collective

ROOT = Path(odc_engine.__file__).parents[1]
HAS = {
    "module": FSDPModule,
    "state": _fsdp_state.FSDPState,
    "group": _fsdp_param_group.FSDPParamGroup,
    "parameter": _fsdp_param.FSDPParam,
    "shard": DTensor,
    "_C": torch._C,
    "engine": type(Variable._execution_engine),
}
EVERY = [(HAS[row.of], row.name) for row in inside.NAMES] + [(FSDPModule, name) for name in inside.HOOKS]
OLDER = {*before_213.GROUP, *before_213.STATE}


def hide(patch, has, name):
    """From the engine: torch's own code still finds it."""
    if name == inside.LATER:
        patch.setattr(has, "__annotations__", {k: v for k, v in has.__annotations__.items() if k != name})
    elif has in (FSDPModule, torch._C):
        patch.delattr(has, name)
    elif has is HAS["engine"]:
        patch.setattr(Variable, "_execution_engine", object())
    else:
        usual = has.__getattribute__

        def get(self, asked):
            hidden = (name, "_fsdp_param_groups") if name == "_fsdp_param_group" else (name,)
            if asked in hidden and sys._getframe(1).f_globals["__name__"] == inside.__name__:
                raise AttributeError(f"'{has.__name__}' object has no attribute '{asked}'", name=asked, obj=self)
            return usual(self, asked)

        patch.setattr(has, "__getattribute__", get)


@pytest.mark.parametrize(("has", "name"), EVERY, ids=lambda each: each if isinstance(each, str) else "")
def test_doctor_sees_what_is_missing(monkeypatch, has, name):
    assert abilities._hooks().ok
    hide(monkeypatch, has, name)
    assert not abilities._hooks().ok


def without_each(_rank):
    """The names without which something is made all the same."""
    model, missed = work.shard(Case((1, 1)), Case((1, 1)).fresh()), []
    for has, name in EVERY:
        with pytest.MonkeyPatch.context() as patch:
            hide(patch, has, name)
            missed += [name for make in (OnDemand, Collective) if not work.refused(lambda make=make: make(model))]
    OnDemand(model).close()  # none has left anything
    return missed


def test_so_does_whoever_replaces_communication(pools):
    assert pools(2).run(without_each) == [[]] * 2


def private(path: Path) -> set[str]:
    """The attributes that a file reads or writes of others than itself and its own class, if they begin with one _."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_own(node.value)}
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    every = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and not is_own(node.value)}
    return {name for name in every if re.match("_[^_]", name)} - own - names


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


# Public in all but name: version counters, and what autograd and torch.distributed.optim keep on a tensor.
OF_TENSORS = {"_version", "_backward_hooks", "_post_accumulate_grad_hooks", "_in_backward_optimizers", "_C"}
OF_TENSORS |= {"_execution_engine", "_disabled_torch_function_impl"}


def test_private_names_of_torch_stand_in_one_file_and_are_tried():
    tried = {row.name for row in inside.NAMES} | set(inside.SETTINGS)
    optional = {"_fsdp_param_groups", "_get_backend", "_timeout", inside.FIRST_STATE}
    assert private(Path(inside.__file__)) - OF_TENSORS - optional - {"_own"} <= tried
    older = {"_all_gather_result", *before_213.GROUP, *before_213.STATE}
    assert private(Path(before_213.__file__)) - OF_TENSORS <= older | tried
    for path in Path(inside.__file__).parent.glob("*.py"):
        if path.name not in ("inside.py", "before_213.py"):
            assert private(path) - OF_TENSORS == set(), path.name


def test_the_range_of_torch_is_the_same_wherever_it_stands():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [named] = {each for extra in extras.values() for each in extra if re.match(r"torch\b", each)}
    assert f"pip install '{named}'" == FOR_TORCH
