"""Optimizers of a model's parameters: when they step, and what their steps do where they are attached."""
