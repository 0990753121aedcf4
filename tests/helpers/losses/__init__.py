"""Losses and loaders as people write them, one trainer each. `EVERY` has them by their sentences, room by room.

Each trains on two devices, stock and on demand, and as one batch in one process (followed.py, judged.py).
"""

import importlib

from losses.kind import Kind

ROOMS = {
    "models": "Losses of models",
    "own": "Your own losses",
    "apart": "Losses that depend on other samples or other ranks",
    "loaders": "Loaders and samplers",
    "of_trl": "Trainers of TRL",
}
OF_ROOMS: dict[str, dict[str, Kind]] = {room: importlib.import_module(f"losses.{room}").EVERY for room in ROOMS}
EVERY: dict[str, Kind] = {sentence: kind for kinds in OF_ROOMS.values() for sentence, kind in kinds.items()}
