"""Run a sharded model's passes again in one process: their recorded inputs, and a plain copy of the model."""
