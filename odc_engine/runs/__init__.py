"""A schedule file is run for real: devices started, held against one process, and ended."""
