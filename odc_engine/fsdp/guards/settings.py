"""Refuse changes of FSDP2's communication settings by other code."""

from typing import Any

from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


class Settings(Guard):
    """Compare the settings of all units while an OnDemand holds them."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._settings: list[dict[str, Any]] = [unit.group.settings() for unit in loop.units]

    def before_forward(self, unit: Unit) -> Refusals:
        return self.throughout(unit) if self.loop.minibatch.first_use(unit) else iter(())

    def throughout(self, unit: Unit) -> Refusals:
        now, told = unit.group.settings(), self._settings[unit.index]
        for name in told:
            if now[name] != told[name]:
                problem = f"FSDP2's communication settings changed for {unit.name} ({name.strip('_')})"
                yield InputError(problem, fix="change them before OnDemand is made")
