"""Runs made to be measured: profiles, bandwidth, and launches of kernels."""
