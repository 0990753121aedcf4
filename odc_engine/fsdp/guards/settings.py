"""How FSDP2 has been told to communicate. Others may tell it otherwise."""

from collections.abc import Iterator, Sequence
from typing import Any

from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


class Settings:
    """How units communicate while an OnDemand has them. Others may tell FSDP2 otherwise."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._settings: list[dict[str, Any]] = [unit.group.settings() for unit in units]

    def otherwise(self, unit: Unit) -> Iterator[InputError]:
        now, told = unit.group.settings(), self._settings[unit.index]
        for name in told:
            if now[name] != told[name]:
                yield InputError(
                    f"FSDP2 was told to communicate otherwise for {unit.name} ({name.strip('_')})",
                    fix="tell it before OnDemand is made",
                )
