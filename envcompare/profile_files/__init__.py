"""Read the files of profilers, and derive quantities from them."""
