"""Transports: how devices reach each other's memory and meet."""
