"""Runs for measuring: profiles and bandwidth."""
