"""The words of every answer: templates and small functions that take figures."""

from importlib import import_module
from typing import Any

from odcsim.answer import Answer

# The module that makes an answer of each kind of result.
WORDS = {
    "Advice": "advice_words",
    "BreakEven": "break_even_words",
    "Comparison": "comparison_words",
    "Diagnosis": "diagnosis_words",
    "RolloutSteps": "rl_words",
    "Setting": "setting_words",
}


def answer(result: Any) -> Answer:
    """What a result says."""
    words: Answer = import_module(f"odcsim.say.{WORDS[type(result).__name__]}").answer(result)
    return words
