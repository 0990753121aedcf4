"""On-demand communication in verl's FSDP2 engine: each rank runs as many microbatches as its own samples need.

    export VERL_USE_EXTERNAL_MODULES=odc_engine.trainers.verl_plugin VERL_ENGINE_VENDOR=odc
    python -m verl.trainer.main_ppo ...

verl builds its actor's engine from a registry, by a vendor's name if one is set. It divides losses by the tokens of the
whole minibatch on all ranks and multiplies them by the number of ranks: right however samples are packed.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.fsdp.remedies import IN_A_TRAINER
from odcsim.errors import InputError

__all__ = ["VerlMixin"]

VENDOR = "odc"


class VerlMixin:
    """Put it in front of verl's FSDPEngine. An engine that only runs forward, such as the reference's, stays stock."""

    _odc: OnDemand | None = None
    _apart = False  # whether devices split their own samples, each for itself

    @property
    def _engine(self) -> Any:
        """Return this object, typed as the engine that it is, too."""
        return self

    @property
    def _stock(self) -> Any:
        return super()

    def initialize(self) -> None:
        trained = not self._engine.engine_config.forward_only
        if trained:
            _check(self._engine)
        self._stock.initialize()
        if trained:
            # What is not finite verl skips itself, on all devices.
            self._odc = OnDemand(self._engine.module, check_finite=False)
            self._odc.speak(IN_A_TRAINER)

    def forward_backward_batch(self, data: Any, loss_function: Callable[..., Any], forward_only: bool = False) -> Any:
        self._apart = self._odc is not None
        try:
            return self._stock.forward_backward_batch(data, loss_function, forward_only=forward_only)
        finally:
            self._apart = False

    def get_data_parallel_group(self) -> Any:
        """Return None while samples are split: verl then sums tokens over all ranks, and does not make microbatch
        counts equal."""
        return None if self._apart else self._stock.get_data_parallel_group()

    def _gradient_sync_context(self, *, is_last_micro_batch: bool) -> AbstractContextManager[None]:
        """Push the gradients of every microbatch, which does not synchronize."""
        del is_last_micro_batch
        return nullcontext()

    def optimizer_step(self) -> float:
        if self._odc is None:
            return float(self._stock.optimizer_step())
        self._odc.settle()
        norm = float(self._stock.optimizer_step())
        self._odc.publish()
        return norm

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._stock.load_checkpoint(*args, **kwargs)
        if self._odc is not None:
            self._odc.publish()

    def publish_weights(self) -> None:
        """Publish weights that were changed other than by a step. Call it on all ranks."""
        if self._odc is not None:
            self._odc.publish()

    def close(self) -> None:
        """Restore stock communication."""
        if self._odc is not None:
            self._odc.close()
            self._odc = None


def _check(engine: Any) -> None:
    for problem, fix in _problems(engine.engine_config):
        raise InputError(problem, where=type(engine).__name__, fix=fix)


def _problems(own: Any) -> Iterator[tuple[str, str]]:
    if own.strategy != "fsdp2":
        yield f"strategy '{own.strategy}'", "set strategy=fsdp2"
    if own.ulysses_sequence_parallel_size > 1:
        spread = own.ulysses_sequence_parallel_size
        yield f"samples that {spread} devices run together", "leave ulysses_sequence_parallel_size at 1"
    if own.fsdp_size == 1:
        yield "fsdp_size 1, which leaves each device a whole model", "leave it at -1, or set the devices of a machine"
    if own.param_offload:
        yield "param_offload, which moves weights that other ranks read", "leave it off; optimizer_offload may be on"
    if str((own.mixed_precision or {}).get("param_dtype", own.dtype)) in ("fp16", "float16"):
        yield "fp16, whose loss scaler relies on gradients that overflow", "use bf16"


def register() -> None:
    """Register engines that VERL_ENGINE_VENDOR=odc selects; all others stay verl's own."""
    base = import_module("verl.workers.engine.base")
    stock = import_module("verl.workers.engine.fsdp.transformer_impl")
    for kind, model in (("FSDPEngineWithLMHead", "language_model"), ("FSDPEngineWithValueHead", "value_model")):
        engine = type(f"OnDemand{kind}", (VerlMixin, getattr(stock, kind)), {})
        base.EngineRegistry.register(model_type=model, backend="fsdp2", device=["cuda", "cpu"], vendor=VENDOR)(engine)
