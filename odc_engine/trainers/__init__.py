"""On-demand in trainers that others wrote: what each of them needs to hand every device its own number of microbatches.

from odc_engine.trainers import OnDemandMixin
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odc_engine.trainers.hugging_face import OnDemandMixin
    from odc_engine.trainers.rollouts import OnDemandRollouts

__all__ = ["OnDemandMixin", "OnDemandRollouts"]


def __getattr__(name: str) -> Any:
    """What needs torch loads when first used."""
    if name == "OnDemandMixin":
        from odc_engine.trainers.hugging_face import OnDemandMixin

        return OnDemandMixin
    if name == "OnDemandRollouts":
        from odc_engine.trainers.rollouts import OnDemandRollouts

        return OnDemandRollouts
    raise AttributeError(f"module 'odc_engine.trainers' has no attribute '{name}'")
