"""The words of every answer: templates and small functions that take figures."""

from importlib import import_module
from typing import Any

from odcsim.answer import Answer

# The module that makes an answer of each kind of result.
WORDS = {
    "Advice": "advice_words",
    "Audit": "audit_words",
    "BreakEven": "break_even_words",
    "Comparison": "comparison_words",
    "Diagnosis": "diagnosis_words",
    "Hang": "hang_words",
    "Levers": "lever_words",
    "RolloutSteps": "rl_words",
    "Setting": "setting_words",
}


def answer(result: Any) -> Answer:
    """What a result says; one of a kind of its own says what its kind does."""
    kind = next(kind.__name__ for kind in type(result).__mro__ if kind.__name__ in WORDS)
    words: Answer = import_module(f"odcsim.say.{WORDS[kind]}").answer(result)
    return words
