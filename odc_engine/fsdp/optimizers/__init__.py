"""Optimizers of a model's parameters: detect their steps, and settle and publish around steps of attached ones."""
