"""A run that exists, as its files tell it: what every rank did in each step, and where ranks met."""
