"""Many comparisons from one grid: points, who works on them, what is kept of each, one table of all."""
