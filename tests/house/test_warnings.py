"""Warnings are errors, but those that a GPU's machine has of its own versions of torch."""

from pathlib import Path

import pytest


class Item:
    """A test, as pytest has collected it."""

    def __init__(self, *marks):
        self.marks, self.added = marks, []

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, mark):
        self.added.append(mark)


def test_tests_for_a_gpu_alone_bear_warnings(request):
    home = str(Path(__file__).parents[1] / "conftest.py")
    [ours] = [each for each in request.config.pluginmanager.get_plugins() if getattr(each, "__file__", "") == home]
    plain, gpu = Item("slow"), Item("gpu")
    ours.pytest_collection_modifyitems([plain, gpu])
    assert plain.added == []
    assert gpu.added == [pytest.mark.filterwarnings("default")]
    assert request.config.getini("filterwarnings") == ["error"]
