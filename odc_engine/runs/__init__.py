"""Run a schedule file for real: start its ranks, compare gradients with one process, and end the ranks."""
