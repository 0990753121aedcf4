"""What spans say: idle and its parts, a row of a table, a prediction against a measurement."""
