"""A callback for the Trainer of transformers and those of TRL. It only observes.

    trainer.add_callback(odc_engine.watch("runs/watched"))

A microbatch lasts from the model's forward to the end of its backward. Its lengths are read from the model's inputs.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from odc_engine.watching.batches import holding
from odc_engine.watching.watcher import Watcher
from odcsim.errors import InputError


def watch(folder: Path | str, *, every: int = 20) -> "WatchCallback":
    """Write lengths and seconds of every rank's microbatches to `folder`; rank 0 prints a summary every so many
    steps."""
    return WatchCallback(folder, every)


class WatchCallback:
    """Receives all events of a Trainer, and ignores most."""

    def __init__(self, folder: Path | str, every: int = 20) -> None:
        self._folder, self._every = folder, every
        self._watcher: Watcher | None = None
        self._hooks: list[Any] = []
        self._since = 0.0
        self._in_step = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Ignore all other events. Their names are not asked of transformers, so that this file does not need it."""
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_: Any) -> None:
        del state, control
        self._stop()
        if former := _WATCHED.get(model):
            former._stop()  # its run ended by an exception
        _refuse(args, model)
        trainer = "trl" if type(args).__module__.startswith("trl.") else "transformers"
        self._watcher = Watcher(self._folder, every=self._every, trainer=trainer)
        self._watcher.open()
        self._hooks = [
            model.register_forward_pre_hook(_Hook(self._enter), prepend=True, with_kwargs=True),
            model.register_forward_hook(_Hook(self._leave)),
        ]
        _WATCHED[model] = self
        self._load()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Note that the step's batches are loaded."""
        if self._watcher:
            self._watcher.note_loader(time.perf_counter() - self._since)
            self._in_step = True

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        if self._watcher:
            self._watcher.end_microbatch()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.on_substep_end()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, control
        if self._watcher:
            self._watcher.step(state.global_step)
            self._load()

    def on_log(self, *_: Any, **__: Any) -> None:
        """Note that the Trainer's work between steps is over: from here on it loads data."""
        if self._watcher and not self._in_step:
            self._load()

    on_evaluate = on_save = on_epoch_begin = on_log

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._stop()

    def _load(self) -> None:
        assert self._watcher is not None
        self._in_step = False
        self._watcher.drop_step()
        self._watcher.begin_step()
        self._since = time.perf_counter()

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._watcher:
            self._watcher.close()
            self._watcher = None

    def _enter(self, model: nn.Module, args: tuple[Any, ...], batch: Mapping[str, Any]) -> None:
        """Begin a microbatch. A forward without gradients, such as a reference model's, does not count."""
        del model
        if self._watcher and self._in_step and torch.is_grad_enabled():
            named = {"input_ids": args[0]} if args and isinstance(args[0], Tensor) else {}
            go = self._watcher.widen_microbatch if self._watcher.in_microbatch else self._watcher.begin_microbatch
            with self._watcher.safely():
                go(holding({**named, **batch}))

    def _leave(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        del model, args
        if self._watcher and self._watcher.in_microbatch:
            for tensor in _tensors(output):
                cast(Any, tensor).register_hook(self._backward)
                return

    def _backward(self, gradient: Tensor) -> None:
        """Note that backward begins; the microbatch ends with it."""
        del gradient
        Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        if self._watcher:
            self._watcher.end_microbatch()


class _Hook:
    """A hook of a model. Its copy, when the model is copied or saved, does nothing."""

    def __init__(self, does: Callable[..., None] | None = None) -> None:
        self._does = does

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any) -> None:
        if self._does:
            self._does(*args)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()


_WATCHED: weakref.WeakKeyDictionary[nn.Module, WatchCallback] = weakref.WeakKeyDictionary()


def _refuse(args: Any, model: nn.Module) -> None:
    """Refuse models whose times cannot be measured."""
    where, fix = "odc_engine.watch", "take the callback away"
    if (devices := getattr(args, "n_gpu", 1)) > 1:
        fix = "start one process for each GPU, as torchrun does"
        raise InputError(f"one process trains on {devices} GPUs (DataParallel)", where=where, fix=fix)
    if others := sorted({p.device.type for p in model.parameters()} - {"cpu", "cuda", "meta"}):
        raise InputError(f"the model is on {others[0]}, not on a CPU or CUDA", where=where, fix=fix)


def _tensors(output: Any) -> Iterator[Tensor]:
    """Return the output tensors at which backward may begin; the loss first."""
    if isinstance(output, Tensor):
        if output.requires_grad:
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
