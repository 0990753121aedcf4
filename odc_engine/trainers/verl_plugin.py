"""What verl imports by VERL_USE_EXTERNAL_MODULES: once imported, its engines on demand are registered."""

from importlib.util import find_spec

from odc_engine.trainers.verl import register

if find_spec("verl"):
    register()
