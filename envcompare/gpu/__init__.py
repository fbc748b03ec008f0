"""What GPUs are: chips, peaks, kernel names, tensor cores."""
