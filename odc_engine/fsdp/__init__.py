"""On-demand communication for a model that FSDP2 shards, through its public hooks.

from odc_engine.fsdp import OnDemand
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odc_engine.fsdp.on_demand import OnDemand

__all__ = ["OnDemand"]


def __getattr__(name: str) -> Any:
    """What needs torch loads when first used."""
    if name == "OnDemand":
        from odc_engine.fsdp.on_demand import OnDemand

        return OnDemand
    raise AttributeError(f"module 'odc_engine.fsdp' has no attribute '{name}'")
