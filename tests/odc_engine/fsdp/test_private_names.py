"""A torch whose FSDP2 lacks a name that the engine uses is refused, by `doctor` and where OnDemand is made."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import work
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param, _fsdp_param_group, _fsdp_state
from work import Case

from odc_engine import OnDemand
from odc_engine.doctor import abilities
from odc_engine.errors import FOR_TORCH
from odc_engine.fsdp import groups
from odc_engine.fsdp.collective import Collective

PARAMETER = _fsdp_param.FSDPParam
TRIED = {
    _fsdp_state.FSDPState: ("_fsdp_param_group", *groups.STATE),
    _fsdp_param_group.FSDPParamGroup: groups.GROUP,
    _fsdp_common.FSDPMeshInfo: groups.MESH,
    PARAMETER: groups.PARAMETER,
    _fsdp_param.ParamModuleInfo: groups.PLACES,
}
HIDDEN = [(has, name) for has, names in TRIED.items() for name in names]
DECLARED = [(PARAMETER, name) for name in groups.PARAMETER_LATER]
DELETED = [(FSDPModule, name) for name in (*groups.HOOKS, "_get_fsdp_state")] + [(torch._C, "_current_graph_task_id")]
EVERY = HIDDEN + DECLARED + DELETED
OF_REPLICAS = (_fsdp_common.HSDPMeshInfo, "replicate_process_group")  # without it replicas would be taken for none
# Read only where they are, or set here alone.
OPTIONAL = {"_fsdp_param_groups", *groups.SETTINGS, "reset_iter_state", *groups.STATE_BEFORE, *groups.GROUP_BEFORE}
AFTER_GROUPS_BEFORE = {"post_forward_order", "all_gather_state", "iter_forward_root"}  # of what was tried
OF_TORCH = {"_C", "_execution_engine", "_parameters", "post_backward_final_callback_queued"}


def hide(patch, has, name):
    """From the engine: FSDP2's own code still finds it."""
    if (has, name) in DECLARED:
        patch.setattr(has, "__annotations__", {k: v for k, v in has.__annotations__.items() if k != name})
    elif (has, name) in DELETED:
        patch.delattr(has, name)
    else:
        usual = has.__getattribute__

        def get(self, asked):
            hidden = (name, "_fsdp_param_groups") if name == "_fsdp_param_group" else (name,)
            if asked in hidden and sys._getframe(1).f_globals["__name__"] == groups.__name__:
                raise AttributeError(f"'{has.__name__}' object has no attribute '{asked}'", name=asked, obj=self)
            return usual(self, asked)

        patch.setattr(has, "__getattribute__", get)


@pytest.mark.parametrize(("has", "name"), [*EVERY, OF_REPLICAS], ids=lambda each: each if isinstance(each, str) else "")
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


def test_every_private_name_that_is_read_is_tried():
    tree, read = ast.parse(Path(groups.__file__).read_text()), set()
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
        base = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        of_torch = base in ("own", "state", "at", "info", "mesh_info", "_state_ctx", "comm_ctx")
        if (of_torch or re.match("_[^_]", node.attr)) and not node.attr.startswith("__"):
            read.add(node.attr)
    tried = {name for _, name in EVERY} | {"_local_tensor", OF_REPLICAS[1]}
    assert read - defined - OPTIONAL - AFTER_GROUPS_BEFORE - OF_TORCH <= tried


def test_the_range_of_torch_is_the_same_wherever_it_stands():
    root = Path(groups.__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [named] = {each for extra in extras.values() for each in extra if re.match(r"torch\b", each)}
    assert f"pip install '{named}'" == FOR_TORCH
