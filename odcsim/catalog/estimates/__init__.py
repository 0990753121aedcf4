"""Seconds and bytes from a model's sizes, where nobody has measured them."""
