"""Passes of a sharded model run again by one process: what they were given, and a plain copy of the model."""
