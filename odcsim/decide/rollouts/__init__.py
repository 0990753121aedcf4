"""A whole step of reinforcement learning: groups of rollouts, updates, passes without backward, generation."""
