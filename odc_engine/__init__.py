"""The engine that runs odcsim's schedules on real devices.

from odc_engine import OnDemand
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odc_engine.fsdp import OnDemand
    from odc_engine.packed import Packed, loss_tokens, pack, sample_mean, token_mean
    from odc_engine.runs.check import check
    from odc_engine.sampler import BalancedBatches, agree
    from odc_engine.watching.callback import watch
    from odc_engine.watching.watcher import Watcher

_HOME = {
    "BalancedBatches": "sampler",
    "OnDemand": "fsdp",
    "Packed": "packed",
    "Watcher": "watching.watcher",
    "agree": "sampler",
    "check": "runs.check",
    "loss_tokens": "packed",
    "pack": "packed",
    "sample_mean": "packed",
    "token_mean": "packed",
    "watch": "watching.callback",
}
__all__ = [
    "BalancedBatches",
    "OnDemand",
    "Packed",
    "Watcher",
    "agree",
    "check",
    "loss_tokens",
    "pack",
    "sample_mean",
    "token_mean",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Public names load when first used: they need torch, and `odc_engine --help` does not."""
    if name in _HOME:
        return getattr(import_module(f"odc_engine.{_HOME[name]}"), name)
    raise AttributeError(f"module 'odc_engine' has no attribute '{name}'")
