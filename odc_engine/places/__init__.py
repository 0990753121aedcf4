"""Where a rank's work runs: a CPU's threads, or streams on a GPU."""
