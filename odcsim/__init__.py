"""Predict what uneven sequence lengths cost in data-parallel post-training.

import odcsim
question = odcsim.ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=4, max_tokens=65536)
answer = odcsim.compare(question)
print(answer.row("lb-mini", "on-demand").speedup)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcsim.errors import InputError
    from odcsim.executors.simulation import Simulation, simulate
    from odcsim.pages.report import write_report
    from odcsim.questions.asking import ask
    from odcsim.questions.comparison import Comparison, compare
    from odcsim.questions.setting import Setting, plan
    from odcsim.questions.sweep import sweep_max_tokens
    from odcsim.reading import load
    from odcsim.sweeps.sweeping import sweep
    from odcsim.trace import Trace

__version__ = "0.1.0"

_HOME = {
    "Comparison": "questions.comparison",
    "InputError": "errors",
    "Setting": "questions.setting",
    "Simulation": "executors.simulation",
    "Trace": "trace",
    "ask": "questions.asking",
    "compare": "questions.comparison",
    "load": "reading",
    "plan": "questions.setting",
    "simulate": "executors.simulation",
    "sweep": "sweeps.sweeping",
    "sweep_max_tokens": "questions.sweep",
    "write_report": "pages.report",
}
__all__ = [
    "Comparison",
    "InputError",
    "Setting",
    "Simulation",
    "Trace",
    "ask",
    "compare",
    "load",
    "plan",
    "simulate",
    "sweep",
    "sweep_max_tokens",
    "write_report",
]
_MODULES = ("balance", "catalog", "plots", "reading", "timeline")  # what they offer is public, too


def __getattr__(name: str) -> Any:
    """Public names load when first used, so that `import odcsim` and `odcsim --help` stay quick."""
    if name in _HOME:
        return getattr(import_module(f"odcsim.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"odcsim.{name}")
    raise AttributeError(f"module 'odcsim' has no attribute '{name}'")


def __dir__() -> list[str]:
    """What may be used, loaded or not."""
    return sorted([*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))])
