"""What a run that exists loses, why, and what would change it."""
