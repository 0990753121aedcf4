"""Importing this makes our packages and these programs found, here and in processes that are started from here,
wherever the program lies and whatever folder it is called in: a checkout, or a kit with the packages in `lib`."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HELPERS = ROOT / "tests/helpers"
PLACES = [str(HERE), str(HELPERS)]
PLACES += [str(place) for place in (ROOT, ROOT / "lib") if (place / "odc_engine").is_dir()]

sys.path[:0] = [place for place in PLACES if place not in sys.path]
_told = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
os.environ["PYTHONPATH"] = os.pathsep.join([*(place for place in PLACES if place not in _told), *_told])
