"""Access FSDP2's parameter groups: what it gathers and reduces as one, in which order and padding.

FSDP2 has no public list of them. This is the only file that reads its private names. All that is read anywhere is tried
when groups are looked for, so that a version of torch that lacks one is refused before anything is changed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from odc_engine.errors import FOR_TORCH
from odcsim.errors import InputError

REGISTERING = "set_symm_mem_for_comm"
# Settings of a group's communication that OnDemand changes, and restores at the end.
SETTINGS = (
    "_all_gather_comm",
    "_reduce_scatter_comm",
    "_all_reduce_hook",
    "force_sum_reduction_for_comms",
    "gradient_divide_factor",
    "reduce_scatter_unused_params",
)
# FSDP2's public hooks that on-demand communication plugs into.
HOOKS = (
    "set_custom_all_gather",
    "set_custom_reduce_scatter",
    "set_force_sum_reduction_for_comms",
    "set_gradient_divide_factor",
)
# Private names of its objects, by what has them here: a test holds these to what this file reads.
STATE = ("_modules", "_is_root")
GROUP = (
    *("fsdp_params", "mesh_info", "mp_policy", "offload_policy", "_training_state", "reduce_grads", "all_reduce_grads"),
    *("_partial_reduce_output", "_all_gather_result", "reshard_after_backward"),
    *("is_unsharded", "unshard", "wait_for_unshard", "post_backward", "_all_gather_comm", "_reduce_scatter_comm"),
)
MESH = ("mesh", "shard_process_group", "replicate_mesh_dim")
PARAMETER = ("sharded_param", "_module_info", "padded_sharded_param_size", "unsharded_accumulated_grad")
PARAMETER_LATER = ("param_dtype", "_unsharded_param")  # declared in the class, and set at the first use
PLACES = ("module", "param_name", "shared_modules", "shared_param_names")
# ... and those that torch before 2.13 needs to start anew.
STATE_BEFORE, GROUP_BEFORE = ("_training_state", "_state_ctx"), ("_post_forward_indices", "comm_ctx")


@dataclass(frozen=True, slots=True)
class Managed:
    """One parameter of a group. FSDP2 may replace the tensors, so each property reads them anew."""

    name: str
    own: Any  # FSDP2's FSDPParam

    @property
    def sharded(self) -> DTensor:
        return cast(DTensor, self.own.sharded_param)

    @property
    def local(self) -> Tensor:
        return cast(Tensor, self.own.sharded_param._local_tensor)

    @property
    def whole(self) -> nn.Parameter:
        """The whole parameter that forward uses. It exists from the first gather on, and stays the same tensor."""
        return cast(nn.Parameter, self.own._unsharded_param)

    @property
    def in_place(self) -> bool:
        """Whether modules hold this parameter, sharded or whole."""
        at = self.own._module_info
        slots = [(at.module, at.param_name), *zip(at.shared_modules, at.shared_param_names, strict=True)]
        shown = (module._parameters.get(name) for module, name in slots)
        return all(one is self.own.sharded_param or one is self.own._unsharded_param for one in shown)

    @property
    def cast(self) -> bool:
        """Whether the dtype has changed since the first gather: FSDP2 keeps memory of the former dtype."""
        whole = getattr(self.own, "_unsharded_param", None)
        return whole is not None and whole.dtype != (self.own.param_dtype or self.sharded.dtype)

    @property
    def padded(self) -> int:
        """Number of elements in each rank's shard, padding included."""
        return int(self.own.padded_sharded_param_size.numel())

    def like_the_shard(self, local: Tensor) -> DTensor:
        """Wrap a local tensor as a DTensor with the parameter's mesh and placements."""
        of = self.sharded
        mesh, placements = of.device_mesh, of.placements
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=of.shape, stride=of.stride())

    @property
    def kept_back(self) -> bool:
        """Whether it has a gradient that is not reduced yet (no_sync)."""
        return self.whole.grad is not None or self.own.unsharded_accumulated_grad is not None

    def reach_by_zeros(self) -> None:
        """Treat it as used, with a gradient of zeros."""
        if self.whole.requires_grad:
            self.whole.grad = torch.zeros_like(self.whole)

    def forget(self) -> None:
        self.whole.grad = None
        self.own.unsharded_accumulated_grad = None


@dataclass(frozen=True, slots=True)
class Group:
    """One of FSDP2's FSDPParamGroups. `modules`: those given to one `fully_shard` call."""

    name: str
    modules: tuple[nn.Module, ...]
    parameters: tuple[Managed, ...]
    own: Any

    @property
    def devices(self) -> dist.ProcessGroup:
        """Process group over which it is sharded."""
        return cast(dist.ProcessGroup, self.own.mesh_info.shard_process_group)

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """Process group of the ranks that hold the same shard (HSDP)."""
        info = self.own.mesh_info
        replicated = info.replicate_mesh_dim is not None
        return cast("dist.ProcessGroup | None", info.replicate_process_group if replicated else None)

    @property
    def precision(self) -> MixedPrecisionPolicy:
        return cast(MixedPrecisionPolicy, self.own.mp_policy)

    @property
    def offloaded(self) -> bool:
        """Whether its parameters are offloaded to the CPU."""
        return isinstance(self.own.offload_policy, CPUOffloadPolicy)

    @property
    def dims(self) -> int:
        """Number of dimensions of FSDP2's own mesh."""
        return int(self.own.mesh_info.mesh.ndim)

    @property
    def beside(self) -> dist.ProcessGroup | None:
        """Process group of the ranks that hold other parts of the same layers (tensor parallelism)."""
        meshes = [managed.sharded.device_mesh for managed in self.parameters]
        return next((mesh.get_group(self.dims) for mesh in meshes if mesh.ndim > self.dims), None)

    def keep_from_replicas(self) -> Callable[[], None]:
        """Stop backward from reducing over replicas. Returns a call that ends this."""
        usual = self.own.all_reduce_grads

        def alone() -> None:
            """Clear the output of the last push, which FSDP2 would add to the next; torch 2.11 gives that another
            size."""
            self.own.all_reduce_grads, self.own._partial_reduce_output = False, None

        end = self.before_reduction(alone)

        def put_back() -> None:
            end()
            self.own.all_reduce_grads, self.own._partial_reduce_output = usual, None

        return put_back

    @property
    def ahead(self) -> bool:
        """Whether a prefetched gather has not been used yet."""
        return self.own._all_gather_result is not None

    @property
    def fsdp(self) -> FSDPModule:
        """One of its modules, typed as FSDPModule: `fully_shard` gives modules both types."""
        return cast(FSDPModule, self.modules[0])

    @property
    def phase(self) -> str:
        """`IDLE`, `FORWARD`, `PRE_BACKWARD` or `POST_BACKWARD`."""
        return str(self.own._training_state.name)

    @property
    def reduces(self) -> bool:
        """Whether the next backward reduces gradients (set_requires_gradient_sync)."""
        return bool(self.own.reduce_grads)

    @property
    def reshards_after_backward(self) -> bool:
        return bool(self.own.reshard_after_backward)

    @property
    def is_whole(self) -> bool:
        return bool(self.own.is_unsharded)

    def finish_gather(self) -> None:
        """Finish a prefetched gather that was not used: its result would later be taken for newer weights."""
        if self.ahead:
            self.own.wait_for_unshard()

    def registered(self) -> tuple[Any, Any]:
        """Return FSDP2's gather and reduction with buffers registered with NCCL, so that copy engines can gather."""
        setter = getattr(self.fsdp, REGISTERING, None)
        if setter is None:
            raise InputError("this torch registers no buffers with NCCL", fix="use torch 2.12 or later, or kernels")
        setter()
        return self.own._all_gather_comm, self.own._reduce_scatter_comm

    def before_use(self, look: Callable[[], None]) -> Callable[[], None]:
        """Call `look` whenever FSDP2 needs the unit whole, even if it is whole already. Returns a call that ends this.

        Module hooks would do, except for compiled layers: FSDP2's hooks are left out of compiled code.
        """
        usual = self.own.unshard

        def unshard(async_op: bool = False) -> None:
            look()
            usual(async_op)

        self.own.unshard = unshard
        return lambda: self.own.__dict__.pop("unshard", None)

    def before_reduction(self, look: Callable[[], None]) -> Callable[[], None]:
        """Call `look` whenever FSDP2 takes the gradients of a backward. Returns a call that ends this."""
        usual = self.own.post_backward

        def post_backward(*unused: Any) -> None:
            look()
            usual(*unused)

        self.own.post_backward = post_backward
        return lambda: self.own.__dict__.pop("post_backward", None)

    @property
    def replaced(self) -> bool:
        """Whether other code has replaced FSDP2's communication."""
        return hasattr(self.own._all_gather_comm, "unit")

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.own, name) for name in SETTINGS if hasattr(self.own, name)}

    def put_back(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            setattr(self.own, name, value)


def groups_of(model: nn.Module) -> list[Group]:
    """Return the groups of a model on which `fully_shard` has been called, in the order of its modules. Raises
    InputError if this torch lacks something that the engine uses of FSDP2."""
    try:
        return list(_groups(model))
    except AttributeError as error:
        raise InputError(
            f"torch {torch.__version__} has another FSDP2 than the engine knows ({error})", fix=FOR_TORCH
        ) from error


def try_alone() -> bool:
    """Do the same with a model of this process alone. Returns whether it could: not inside a run."""
    if dist.is_initialized():
        return False

    dist.init_process_group("fake", store=cast(Any, dist).HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        groups_of(cast(nn.Module, fully_shard(nn.Linear(1, 1, device="cpu"), mesh=mesh)))
    finally:
        dist.destroy_process_group()
    return True


def devices_of(model: nn.Module) -> dist.ProcessGroup | None:
    """Return the ranks over which the model is sharded, if they are only some of all."""
    groups = groups_of(model) if isinstance(model, FSDPModule) else []
    ranks = {tuple(dist.get_process_group_ranks(group.devices)) for group in groups}
    if any(group.replicas is not None and group.devices.size() == 1 for group in groups):
        raise InputError(
            "the mesh has replicas of one device each, so that nothing is sharded",
            fix="shard over more than one device",
        )
    if len(ranks) > 1:
        raise InputError("units are sharded over different devices", fix="give every fully_shard the same mesh")
    whole = not groups or len(next(iter(ranks))) == dist.get_world_size()
    return None if whole else groups[0].devices


def _groups(model: nn.Module) -> Iterator[Group]:
    names = {module: name for name, module in model.named_modules()}
    seen: set[int] = set()
    for module in model.modules():
        if not isinstance(module, FSDPModule) or id(state := module._get_fsdp_state()) in seen:
            continue
        seen.add(id(state))
        title = " and ".join(names.get(each, "?") or "root" for each in state._modules)
        every = _own_groups(state)
        if len(every) > 1:
            raise InputError(
                f"unit {title} has parameters on {len(every)} meshes", fix="give fully_shard one mesh for all of them"
            )
        for own in every:
            _try_names(module, state, own)
            yield Group(title, tuple(state._modules), tuple(_managed(own, names)), own)


def _try_names(module: nn.Module, state: Any, own: Any) -> None:
    """Raise AttributeError if a name is missing that is read or replaced here, now or later."""
    before = not hasattr(module, "reset_iter_state")
    tried = [(FSDPModule, HOOKS), (state, STATE), (own, GROUP), (own.mesh_info, MESH)]
    tried += [(state, STATE_BEFORE), (own, GROUP_BEFORE)] if before else []
    tried += [(own.mesh_info, ("replicate_process_group",))] if own.mesh_info.replicate_mesh_dim is not None else []
    for parameter in own.fsdp_params:
        tried += [
            (parameter, PARAMETER),
            (parameter._module_info, PLACES),
            (parameter.sharded_param, ("_local_tensor",)),
        ]
        declared = type(parameter).__annotations__
        tried.append((parameter, tuple(name for name in PARAMETER_LATER if name not in declared)))
    tried += [(torch._C, ("_current_graph_task_id",)), (cast(Any, Variable)._execution_engine, ("queue_callback",))]
    for has, names in tried:
        for name in names:
            getattr(has, name)


def _own_groups(state: Any) -> list[Any]:
    """Return a module's own groups. torch before 2.13 has one, or none if the module has no parameters of its own."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [own] if (own := state._fsdp_param_group) is not None else []


def _managed(own: Any, names: dict[nn.Module, str]) -> Iterator[Managed]:
    for parameter in own.fsdp_params:
        at = parameter._module_info
        yield Managed(f"{names.get(at.module, '?')}.{at.param_name}".lstrip("."), parameter)


@contextmanager
def stock_afterwards(groups: Sequence[Group]) -> Iterator[None]:
    """Restore FSDP2's stock communication on exit, also after an exception."""
    before = [group.settings() for group in groups]
    try:
        yield
    finally:
        for group, settings in zip(groups, before, strict=True):
            group.put_back(settings)
            group.fsdp.reshard()  # what is whole now was gathered otherwise


def start_anew(model: nn.Module, groups: Sequence[Group]) -> None:
    """Reset FSDP2 after an exception in forward or backward. Gradients that were already reduced remain."""
    root = cast(FSDPModule, model)
    if hasattr(root, "reset_iter_state") and root._get_fsdp_state()._is_root is not False:
        root.reset_iter_state()
    else:  # torch before 2.13
        for group in groups:
            _reset(group)
    for group in groups:
        for managed in group.parameters:
            managed.forget()


def _reset(group: Group) -> None:
    own, state = group.own, cast(Any, group.fsdp._get_fsdp_state())
    group.finish_gather()
    own._training_state = state._training_state = type(own._training_state).IDLE
    own._post_forward_indices.clear()
    own.comm_ctx.post_forward_order.clear()
    own.comm_ctx.all_gather_state = None
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False
    group.fsdp.reshard()


def in_backward() -> bool:
    """Whether this thread is inside a backward."""
    return bool(torch._C._current_graph_task_id() != -1)


def after_backward(call: Callable[[], None]) -> None:
    """Call `call` when the current backward has ended. It is not called if backward raises."""
    cast(Any, Variable)._execution_engine.queue_callback(call)
