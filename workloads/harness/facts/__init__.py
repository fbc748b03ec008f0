"""Facts about the environment of a worker."""
