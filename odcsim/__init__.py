"""Predict what uneven sequence lengths cost in data-parallel post-training."""

__version__ = "0.1.0"
