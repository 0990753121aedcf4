"""A whole training run before anything is rented: what to rent, how to run it, what it takes and costs."""
