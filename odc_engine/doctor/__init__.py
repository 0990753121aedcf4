"""What this machine can run and why not, asked without starting anything."""
