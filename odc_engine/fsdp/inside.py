"""What is read inside torch: FSDP2 shows neither its units, nor what goes on in them.

Private names of FSDP2 are read here alone, and in `before_213` what older versions need. `NAMES` has each of them, what
for, and the public call that would replace it. All are tried when units are looked for, so that a torch that lacks one
is refused before anything is changed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer

from odc_engine.errors import FOR_TORCH
from odc_engine.fsdp import before_213
from odcsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Name:
    of: str  # what has it: a module, FSDP2's state of it, group of parameters or parameter, or torch
    name: str
    why: str
    instead: str


NAMES = (
    Name("module", "_get_fsdp_state", "the way to all that follows", "a list of the units of a model"),
    Name("state", "_fsdp_param_group", "the unit of a module", "a list of the units of a model"),
    Name("group", "fsdp_params", "its parameters, in the order in which it packs", "a list of a unit's parameters"),
    Name("parameter", "mp_policy", "dtypes that no kernel moves", "a getter of fully_shard's arguments"),
    Name("parameter", "offload_to_cpu", "parameters where no peer reads them", "a getter of fully_shard's arguments"),
    Name("group", "_training_state", "whether a gather is for forward or backward", "an argument of the custom gather"),
    Name("group", "unshard", "that a unit is needed which is whole already", "a hook before a unit is used"),
    Name("group", "reduce_grads", "whether a backward pass pushes", "a getter of set_requires_gradient_sync"),
    Name("group", "all_reduce_grads", "replicas are summed once, at the end", "a getter of set_requires_all_reduce"),
    Name("group", "_partial_reduce_output", "FSDP2 adds the last push's output", "a way to leave it out"),
    Name("group", "reshard_after_backward", "second derivatives need weights", "a getter of its setter"),
    Name("group", "_all_gather_result", "a prefetched gather nobody has used", "a getter of it"),
    Name("group", "wait_for_unshard", "... which would be taken for newer weights", "a way to drop it"),
    Name("group", "_all_gather_comm", "stock communication at the end", "a way to restore it"),
    Name("group", "_reduce_scatter_comm", "stock communication at the end", "a way to restore it"),
    Name("group", "gradient_divide_factor", "the mean that the user asked for", "a getter of its setter"),
    Name("group", "force_sum_reduction_for_comms", "as it was at the end", "a getter of its setter"),
    Name("group", "_all_reduce_hook", "a hook that would never run", "a getter of its setter"),
    Name("parameter", "sharded_param", "the shard while the whole one is shown", "a list of a unit's parameters"),
    Name("shard", "_local_tensor", "its version, and no operation of autograd", "a to_local() without either"),
    Name("parameter", "unsharded_accumulated_grad", "a gradient kept by no_sync", "a getter of it"),
    Name("parameter", "_unsharded_param", "the whole one, and a cast since it was first gathered", "a getter of it"),
    Name("_C", "_current_graph_task_id", "whether a backward runs on this thread", "torch.autograd.in_backward"),
    Name("engine", "queue_callback", "when a backward has ended", "a hook after backward"),
)
SHARD = attrgetter("sharded_param")
LATER = "_unsharded_param"  # declared in its class, and set at the first use
# Settings of communication that OnDemand changes and restores, and which nobody else may change meanwhile.
SETTINGS = (
    "_all_gather_comm",
    "_reduce_scatter_comm",
    "_all_reduce_hook",
    "force_sum_reduction_for_comms",
    "gradient_divide_factor",
    "reduce_scatter_unused_params",  # from torch 2.13 on
)
# FSDP2's public hooks that on-demand communication plugs into.
HOOKS = (
    "set_custom_all_gather",
    "set_custom_reduce_scatter",
    "set_force_sum_reduction_for_comms",
    "set_gradient_divide_factor",
)
REGISTERING = "set_symm_mem_for_comm"
# What torch.distributed.checkpoint creates an optimizer's state by: FSDP2's users have no other way to a state that is
# sharded as the model is.
FIRST_STATE = "_init_optim_state"


class Inside:
    """What FSDP2 knows of one unit. `modules`: those given to one `fully_shard` call."""

    def __init__(self, modules: Sequence[nn.Module], name: str, own: Any) -> None:
        self.modules, self.name, self._own = tuple(modules), name, own
        self.fsdp = cast(FSDPModule, modules[0])

    def shards(self) -> list[DTensor]:
        """Return the sharded parameters. FSDP2 may replace them."""
        return list(map(SHARD, self._own.fsdp_params))

    def shard(self, index: int) -> DTensor:
        return cast(DTensor, self._own.fsdp_params[index].sharded_param)

    def whole(self, index: int) -> nn.Parameter | None:
        """Return the parameter that forward uses. It exists from the first gather on, and stays the same tensor."""
        return getattr(self._own.fsdp_params[index], LATER, None)

    def cast(self) -> list[int]:
        """Return the parameters that were cast since they were first gathered: FSDP2 keeps memory of another dtype."""
        every = [(i, each, getattr(each, LATER, None)) for i, each in enumerate(self._own.fsdp_params)]
        return [
            i
            for i, each, whole in every
            if whole is not None and whole.dtype != (each.mp_policy.param_dtype or each.sharded_param.dtype)
        ]

    def kept(self) -> list[int]:
        """Return the parameters with a gradient that is not reduced yet (no_sync), maybe in a dtype of its own."""
        every = [(i, getattr(each, LATER, None), each) for i, each in enumerate(self._own.fsdp_params)]
        return [
            i
            for i, whole, each in every
            if each.unsharded_accumulated_grad is not None or (whole is not None and whole.grad is not None)
        ]

    def drop_kept(self) -> None:
        for each in self._own.fsdp_params:
            if (whole := getattr(each, LATER, None)) is not None:
                whole.grad = None
            if each.unsharded_accumulated_grad is not None:  # from torch 2.15 on it is the one above
                each.unsharded_accumulated_grad = None

    @property
    def phase(self) -> str:
        """`IDLE`, `FORWARD`, `PRE_BACKWARD` or `POST_BACKWARD`."""
        return str(self._own._training_state.name)

    def policies(self) -> set[MixedPrecisionPolicy]:
        return {each.mp_policy for each in self._own.fsdp_params}

    @property
    def offloaded(self) -> bool:
        return any(each.offload_to_cpu for each in self._own.fsdp_params)

    @property
    def reduces(self) -> bool:
        """Whether the next backward reduces gradients (set_requires_gradient_sync)."""
        return bool(self._own.reduce_grads)

    @property
    def frees_after_backward(self) -> bool:
        return bool(self._own.reshard_after_backward)

    @property
    def ahead(self) -> bool:
        """Whether a prefetched gather has not been used yet."""
        return self._own._all_gather_result is not None

    def finish_gather(self) -> None:
        """Finish a prefetched gather that was not used: its result would later be taken for newer weights."""
        self._own.wait_for_unshard()

    def leave_replicas(self) -> None:
        """Keep the next backward from reducing over replicas, and from adding the last push's output to its own, which
        torch 2.11 gives another size."""
        self._own.all_reduce_grads, self._own._partial_reduce_output = False, None

    def before_use(self, look: Callable[[], None]) -> Callable[[], None]:
        """Call `look` whenever FSDP2 needs the unit whole, even if it is whole already. Returns a call that ends this.

        Module hooks would do, except for compiled layers: FSDP2's hooks are left out of compiled code.
        """
        usual = self._own.unshard

        def unshard(async_op: bool = False) -> None:
            look()
            usual(async_op)

        self._own.unshard = unshard
        return lambda: self._own.__dict__.pop("unshard", None)

    def pack_zeros(self, *, meets: bool) -> Callable[[], object]:
        """Make FSDP2 reduce zeros for parameters without gradients, where ranks meet in each transfer: otherwise
        others would wait for a unit that this rank did not use. Returns a call that ends this, if it is no setting."""
        if not before_213.lacks_setter():
            cast(Any, self.fsdp).set_reduce_scatter_unused_params(meets)
        elif meets:
            return before_213.fill_zeros(self._own)
        return lambda: None

    @property
    def replaced(self) -> bool:
        """Whether other code has replaced FSDP2's communication."""
        return hasattr(self._own._all_gather_comm, "unit")

    def registered(self) -> tuple[Any, Any]:
        """Return FSDP2's gather and reduction with buffers registered with NCCL, so that copy engines can gather."""
        setter = getattr(self.fsdp, REGISTERING, None)
        if setter is None:
            raise InputError("this torch registers no buffers with NCCL", fix="use torch 2.12 or later, or kernels")
        setter()
        return self._own._all_gather_comm, self._own._reduce_scatter_comm

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self._own, name) for name in SETTINGS if hasattr(self._own, name)}

    def put_back(self, settings: dict[str, Any], *, all_reduce: bool) -> None:
        for name, value in settings.items():
            setattr(self._own, name, value)
        self._own.all_reduce_grads, self._own._partial_reduce_output = all_reduce, None

    @property
    def all_reduces(self) -> bool:
        return bool(self._own.all_reduce_grads)


def insides(model: nn.Module) -> list[Inside]:
    """Return what FSDP2 knows of the units of a model, in the order of its modules. Raises InputError if this torch
    lacks something that the engine uses of FSDP2."""
    try:
        return list(_insides(model))
    except AttributeError as error:
        raise InputError(
            f"torch {torch.__version__} has another FSDP2 than the engine knows ({error})", fix=FOR_TORCH
        ) from error


def _insides(model: nn.Module) -> Iterator[Inside]:
    modules: dict[int, list[tuple[str, Any]]] = {}  # of each state, those given to one fully_shard call
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            modules.setdefault(id(module._get_fsdp_state()), []).append((name or "root", module))
    for given in modules.values():
        title, module = " and ".join(name for name, _ in given), given[0][1]
        state = module._get_fsdp_state()
        # torch before 2.13 has one group of a module, or none if the module has no parameters of its own.
        own = getattr(state, "_fsdp_param_groups", None)
        every = [each for each in (state._fsdp_param_group,) if each is not None] if own is None else list(own)
        if len(every) > 1:
            raise InputError(
                f"unit {title} has parameters on {len(every)} meshes", fix="give fully_shard one mesh for all of them"
            )
        for group in every:
            _try_names(module, state, group)
            yield Inside([each for _, each in given], title, group)


def _try_names(module: nn.Module, state: Any, group: Any) -> None:
    """Raise AttributeError if a name is missing that is read or replaced here, now or later."""
    engine = cast(Any, Variable)._execution_engine
    has = {"module": module, "state": state, "group": group, "_C": torch._C, "engine": engine}
    for hook in HOOKS:
        getattr(FSDPModule, hook)
    every = {"parameter": group.fsdp_params, "shard": [each.sharded_param for each in group.fsdp_params]}
    for of, name in ((row.of, row.name) for row in NAMES):
        for owner in every.get(of) or [has[of]]:
            if name != LATER or LATER not in type(owner).__annotations__:
                getattr(owner, name)
    before_213.try_names(module, state, group)


def try_alone() -> bool:
    """Try all names on a model of this process alone. Returns whether it could: not inside a run."""
    if dist.is_initialized():
        return False

    dist.init_process_group("fake", store=cast(Any, dist).HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        insides(cast(nn.Module, fully_shard(nn.Linear(1, 1, device="cpu"), mesh=mesh)))
    finally:
        dist.destroy_process_group()
    return True


@contextmanager
def stock_afterwards(units: Sequence[Inside]) -> Iterator[None]:
    """Restore FSDP2's stock communication on exit, also after an exception."""
    before = [(each.settings(), each.all_reduces) for each in units]
    try:
        yield
    finally:
        for each, (settings, all_reduce) in zip(units, before, strict=True):
            each.put_back(settings, all_reduce=all_reduce)
            each.fsdp.reshard()  # what is whole now was gathered otherwise


def start_anew(model: nn.Module, units: Sequence[Inside]) -> None:
    """Reset FSDP2 after an exception in forward or backward. Gradients that were already reduced remain."""
    before = [(shard, shard.grad) for each in units for shard in each.shards()]
    if not before_213.reset_root(cast(FSDPModule, model)):
        for each in units:
            before_213.reset(each.fsdp, each._own)
    for each in units:
        each.drop_kept()
    for shard, gradient in before:  # which torch 2.15 drops
        shard.grad = gradient


def in_backward() -> bool:
    """Whether this thread is inside a backward."""
    return bool(torch._C._current_graph_task_id() != -1)


def after_backward(call: Callable[[], None]) -> None:
    """Call `call` when the current backward has ended. It is not called if backward raises."""
    cast(Any, Variable)._execution_engine.queue_callback(call)


def usual_timeout(model: nn.Module) -> float:
    """Return the timeout of torch's own collectives in seconds, each device type's own: trainers set it by names of
    their own, loops by `init_process_group(timeout=...)`."""
    world: Any = dist.group.WORLD
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        told = world._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):  # another torch, or a backend without, as that of tests
        told = default_pg_timeout
    return float(told.total_seconds())


def uncompiled(call: Any) -> Any:
    """Exclude a call from compilation: synchronizations, and what looks at pending gradients. torch loads its compiler
    for this, as FSDP2 does at first use."""
    disable: Any = torch.compiler.disable
    return disable(call, reason="devices synchronize here: compile it without fullgraph=True")


def local(parameter: DTensor) -> Tensor:
    """Return the very tensor that it holds."""
    return parameter._local_tensor


def versions(shards: Sequence[DTensor]) -> list[tuple[int, int, int]]:
    """Return what changes when parameters do. Loading by assignment replaces them; an operation counts in the DTensor
    or in its local tensor."""
    return [(id(shard), shard._version, shard._local_tensor._version) for shard in shards]


def aside_of_first_states(aside: Callable[[Optimizer, Callable[[], None]], None]) -> Callable[[], None]:
    """Call `aside` with an optimizer and the call that creates its state, when torch.distributed.checkpoint saves or
    loads it before the first step. Returns a call that ends this.

    torch makes such an optimizer step with zero gradients, unless it has gradients: then it saves an empty state, and
    loads nothing into it. So pending gradients of a minibatch that has not begun are put aside.
    """
    from torch.distributed.checkpoint import state_dict as checkpoint

    usual: Any = getattr(checkpoint, FIRST_STATE, None)
    if usual is None:
        return lambda: None
    ended = False

    def initialize(optimizer: Optimizer) -> None:
        if ended:
            usual(optimizer)
        else:
            aside(optimizer, lambda: usual(optimizer))

    def end() -> None:
        nonlocal ended
        ended = True
        if getattr(checkpoint, FIRST_STATE) is initialize:
            setattr(checkpoint, FIRST_STATE, usual)

    setattr(checkpoint, FIRST_STATE, initialize)
    return end
