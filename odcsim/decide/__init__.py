"""Questions are asked and answered: a setting in full, its table, its answer in words."""
