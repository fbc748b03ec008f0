"""Compare two runs, combine several, and gate one of them."""
