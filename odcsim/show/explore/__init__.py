"""A local page that answers while one drags."""
