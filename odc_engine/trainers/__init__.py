"""Balance samples in other trainers: on demand, with microbatch counts that differ between ranks, or with stock sync.

from odc_engine.trainers import BalancedMixin, OnDemandMixin
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odc_engine.trainers.balanced import BalancedMixin
    from odc_engine.trainers.hugging_face import OnDemandMixin
    from odc_engine.trainers.rollouts import OnDemandRollouts

__all__ = ["BalancedMixin", "OnDemandMixin", "OnDemandRollouts"]


def __getattr__(name: str) -> Any:
    """Load a public name at first use: they need torch."""
    if name == "BalancedMixin":
        from odc_engine.trainers.balanced import BalancedMixin

        return BalancedMixin
    if name == "OnDemandMixin":
        from odc_engine.trainers.hugging_face import OnDemandMixin

        return OnDemandMixin
    if name == "OnDemandRollouts":
        from odc_engine.trainers.rollouts import OnDemandRollouts

        return OnDemandRollouts
    raise AttributeError(f"module 'odc_engine.trainers' has no attribute '{name}'")
