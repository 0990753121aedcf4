"""The programs beside the package, in docs and traces, as modules."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
HELPERS = Path(__file__).parent


def load(path: str) -> ModuleType:
    """The program at `path` from the root of the repository. It may import its neighbours, as when it is run."""
    place = ROOT / path
    sys.path.insert(0, str(place.parent))
    try:
        return importlib.import_module(place.stem)
    finally:
        sys.path.remove(str(place.parent))
