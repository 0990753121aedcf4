"""Report what this machine can run, and why not, without starting anything."""
