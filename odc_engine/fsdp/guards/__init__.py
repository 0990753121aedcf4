"""What would make sums other than a user takes them for, each seen by one guard and refused."""
