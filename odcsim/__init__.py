"""Predict what uneven sequence lengths cost in data-parallel post-training.

import odcsim
question = odcsim.ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=4, max_tokens=65536)
answer = odcsim.compare(question)
print(answer.row("lb-mini", "on-demand").speedup)
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcsim.checking.plan_check import PlanCheck, check
    from odcsim.decide.advice import Advice, advise
    from odcsim.decide.asking import ask
    from odcsim.decide.audit import Audit, audit
    from odcsim.decide.break_even import BreakEven, break_even
    from odcsim.decide.comparison import Comparison, compare, sweep_max_tokens
    from odcsim.decide.diagnosis.result import Diagnosis, diagnose
    from odcsim.decide.fitted import Fitted, fit
    from odcsim.decide.levers import Levers, levers
    from odcsim.decide.rl import RolloutSteps, rl
    from odcsim.decide.setting import Setting, plan
    from odcsim.decide.sweep import SweepRows, sweep
    from odcsim.errors import InputError
    from odcsim.executors.simulation import simulate
    from odcsim.neighbours.settings import TrainerFlags, flags
    from odcsim.observed.hang import Hang
    from odcsim.reading import load
    from odcsim.show.pages.report import write_report
    from odcsim.trace import Trace

__version__ = "0.1.0"

_HOME = {
    "Advice": "decide.advice",
    "Audit": "decide.audit",
    "BreakEven": "decide.break_even",
    "Comparison": "decide.comparison",
    "Diagnosis": "decide.diagnosis.result",
    "Fitted": "decide.fitted",
    "Hang": "observed.hang",
    "InputError": "errors",
    "Levers": "decide.levers",
    "PlanCheck": "checking.plan_check",
    "RolloutSteps": "decide.rl",
    "Setting": "decide.setting",
    "SweepRows": "decide.sweep",
    "Trace": "trace",
    "TrainerFlags": "neighbours.settings",
    "advise": "decide.advice",
    "ask": "decide.asking",
    "audit": "decide.audit",
    "break_even": "decide.break_even",
    "check": "checking.plan_check",
    "compare": "decide.comparison",
    "diagnose": "decide.diagnosis.result",
    "fit": "decide.fitted",
    "flags": "neighbours.settings",
    "levers": "decide.levers",
    "load": "reading",
    "plan": "decide.setting",
    "rl": "decide.rl",
    "simulate": "executors.simulation",
    "sweep": "decide.sweep",
    "sweep_max_tokens": "decide.comparison",
    "write_report": "show.pages.report",
}
__all__ = [
    "Advice",
    "Audit",
    "BreakEven",
    "Comparison",
    "Diagnosis",
    "Fitted",
    "Hang",
    "InputError",
    "Levers",
    "PlanCheck",
    "RolloutSteps",
    "Setting",
    "SweepRows",
    "Trace",
    "TrainerFlags",
    "advise",
    "ask",
    "audit",
    "break_even",
    "check",
    "compare",
    "diagnose",
    "fit",
    "flags",
    "levers",
    "load",
    "plan",
    "rl",
    "simulate",
    "sweep",
    "sweep_max_tokens",
    "write_report",
]
_MODULES = ("balance", "catalog", "core", "plots", "reading", "timeline")  # what they offer is public, too


def __getattr__(name: str) -> Any:
    """Public names load when first used, so that `import odcsim` and `odcsim --help` stay quick."""
    if name in _HOME:
        return _offered(name)
    if name in _MODULES:
        return import_module(f"odcsim.{name}")
    raise AttributeError(f"module 'odcsim' has no attribute '{name}'")


@cache
def _offered(name: str) -> Any:
    """Classes as they are; functions name things as Python does. Always the same ones, so that they can be pickled."""
    from odcsim.errors import offered

    found = getattr(import_module(f"odcsim.{_HOME[name]}"), name)
    return found if isinstance(found, type) else offered(found)


def __dir__() -> list[str]:
    """What may be used, loaded or not."""
    return sorted([*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))])
