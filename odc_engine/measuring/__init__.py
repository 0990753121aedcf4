"""Runs for measuring: profiles, bandwidth, and kernel launches."""
