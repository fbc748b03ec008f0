"""Compare two runs, and gate one of them."""
