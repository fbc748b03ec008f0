"""Real data formats, and small data made in them."""
