"""Seconds that somebody measured become a profile that says what it does not explain."""
