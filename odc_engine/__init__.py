"""Run odcsim's schedules on real devices, and train FSDP2 models with on-demand communication (ODC).

from odc_engine import OnDemand

Training loops import all public names from here; trainers import from `odc_engine.trainers`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odc_engine.fsdp.on_demand import OnDemand
    from odc_engine.packed import NO_TARGET, Packed, loss_tokens, pack, sample_mean, token_mean
    from odc_engine.runs.check import check
    from odc_engine.sampler import BalancedBatches, Share, agree
    from odc_engine.watching.callback import watch
    from odc_engine.watching.watcher import Watcher

_HOME = {
    "BalancedBatches": "sampler",
    "NO_TARGET": "packed",
    "OnDemand": "fsdp.on_demand",
    "Packed": "packed",
    "Share": "sampler",
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
    "NO_TARGET",
    "BalancedBatches",
    "OnDemand",
    "Packed",
    "Share",
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
    """Load a public name at first use: most need torch, and `odc_engine --help` does not."""
    if name in _HOME:
        return getattr(import_module(f"odc_engine.{_HOME[name]}"), name)
    raise AttributeError(f"module 'odc_engine' has no attribute '{name}'")
