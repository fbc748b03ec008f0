"""What works on a host, what does not, and the line that mends it."""
